package interop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func TestGroupSharesAndGoesOn(t *testing.T) {
	f := start(t)
	f.createTopic(4)
	p := f.producer()
	a, b := &received{}, &received{}
	f.push("*", a.accept)
	second := f.push("*", b.accept)
	// Both hold queues once each has been handed something.
	f.await("both members to be handed messages", func() bool {
		f.sendAll(p, "warm", 8)
		return len(a.all()) > 0 && len(b.all()) > 0
	}, func() string { return fmt.Sprintf("%d and %d", len(a.all()), len(b.all())) })
	f.sendAll(p, "shared", 80)
	f.await("80 shared messages", func() bool { return len(distinct("shared", a, b)) == 80 }, func() string { return "fewer" })

	f.check(second.Shutdown())
	f.sendAll(p, "alone", 40)
	f.await("40 messages at the member that is left", func() bool { return len(distinct("alone", a)) == 40 },
		func() string { return fmt.Sprint(len(distinct("alone", a))) })
}

func distinct(stem string, rs ...*received) map[string]bool {
	found := map[string]bool{}
	for _, r := range rs {
		for _, text := range r.texts() {
			if strings.HasPrefix(text, stem) {
				found[text] = true
			}
		}
	}
	return found
}

func TestSecondConsumerResumes(t *testing.T) {
	f := start(t)
	f.createTopic(2)
	p := f.producer()
	f.sendAll(p, "before", 40)
	a := &received{}
	first := f.push("*", a.accept)
	f.exactly(numbered("before", 40), a)
	f.check(first.Shutdown())
	f.sendAll(p, "after", 20)
	b := &received{}
	f.push("*", b.accept)
	f.exactly(numbered("after", 20), b)
}

func TestBroadcasting(t *testing.T) {
	f := start(t)
	f.createTopic(2)
	p := f.producer()
	f.sendAll(p, "m", 30)
	for i := 0; i < 2; i++ {
		r := &received{}
		f.push("*", r.accept, consumer.WithConsumerModel(consumer.BroadCasting))
		f.exactly(numbered("m", 30), r)
	}
	f.verdict()
}

func TestOrderly(t *testing.T) {
	f := start(t)
	f.createTopic(4)
	p := f.producer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	for i, text := range numbered("m", 200) {
		m := message(f.topic, "TagA", text).WithShardingKey(fmt.Sprint(i % 7))
		_, err := p.SendSync(context.Background(), m)
		f.check(err)
	}
	r := &received{}
	f.push("*", r.accept, consumer.WithConsumerOrder(true))
	f.exactly(numbered("m", 200), r)
	next := map[int]int64{}
	for _, m := range r.all() {
		if q := m.Queue.QueueId; m.QueueOffset != next[q] {
			t.Fatalf("queue %d: offset %d came when %d was due", q, m.QueueOffset, next[q])
		}
		next[m.Queue.QueueId]++
	}
	f.verdict()
}

func TestTagFilter(t *testing.T) {
	f := start(t)
	f.createTopic(2)
	p := f.producer()
	var wanted []string
	for i := 0; i < 60; i++ {
		tag := []string{"TagA", "TagB", "TagC"}[i%3]
		text := fmt.Sprintf("%s-%d", tag, i)
		_, err := p.SendSync(context.Background(), message(f.topic, tag, text))
		f.check(err)
		if tag != "TagC" {
			wanted = append(wanted, text)
		}
	}
	r := &received{}
	f.push("TagA || TagB", r.accept)
	f.exactly(wanted, r)
	f.verdict()
}

func TestRetry(t *testing.T) {
	f := start(t)
	f.createTopic(2)
	p := f.producer()
	sent, err := p.SendSync(context.Background(), message(f.topic, "TagA", "bad"))
	f.check(err)
	r := &received{}
	f.push("*", func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		r.add(messages...)
		if messages[0].ReconsumeTimes == 0 {
			concurrently, _ := primitive.GetConcurrentlyCtx(ctx)
			concurrently.DelayLevelWhenNextConsume = 1
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	})
	f.await("redelivery", func() bool { return len(r.all()) >= 2 }, func() string { return strings.Join(r.texts(), ",") })
	again := r.all()[1]
	if again.ReconsumeTimes != 1 || string(again.Body) != "bad" || again.GetTags() != "TagA" {
		t.Errorf("redelivered as %v", again)
	}
	if again.GetProperty(primitive.PropertyUniqueClientMessageIdKeyIndex) != sent.MsgID {
		t.Errorf("sent as %s, redelivered as %v", sent.MsgID, again)
	}
	f.verdict()
}

func TestDelay(t *testing.T) {
	f := start(t)
	f.createTopic(1)
	p := f.producer()
	r := &received{}
	f.push("*", r.accept)
	m := message(f.topic, "TagA", "later")
	m.WithDelayTimeLevel(1)
	_, err := p.SendSync(context.Background(), m)
	f.check(err)
	f.exactly([]string{"later"}, r)
	if got := r.all()[0]; got.StoreTimestamp-got.BornTimestamp < 1000 {
		t.Errorf("stored %d ms after it was born", got.StoreTimestamp-got.BornTimestamp)
	}
	f.verdict()
}

func TestIdleConsumerIsWoken(t *testing.T) {
	f := start(t)
	f.createTopic(2)
	p := f.producer()
	r := &received{}
	f.push("*", r.accept)
	f.sendAll(p, "first", 4)
	f.exactly(numbered("first", 4), r)
	time.Sleep(2 * time.Second) // the pulls are held now
	sent := time.Now()
	f.sendAll(p, "second", 4)
	f.exactly(append(numbered("first", 4), numbered("second", 4)...), r)
	if waited := time.Since(sent); waited > 10*time.Second {
		t.Errorf("%v until held pulls were answered", waited)
	}
	f.verdict()
}

func (f *fixture) pullConsumer() rocketmq.PullConsumer {
	f.Helper()
	c, err := rocketmq.NewPullConsumer(consumer.WithNameServer(namesrv()), consumer.WithGroupName(f.group),
		consumer.WithInstance(instance()), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	f.check(err)
	f.check(c.Subscribe(f.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}))
	f.check(c.Start())
	f.Cleanup(func() { _ = c.Shutdown() })
	return c
}

func TestPullConsumerPolls(t *testing.T) {
	f := start(t)
	f.createTopic(2)
	f.sendAll(f.producer(), "m", 40)
	c := f.pullConsumer()
	r := &received{}
	f.await("40 polled messages", func() bool {
		request, err := c.Poll(context.Background(), time.Second)
		if errors.Is(err, consumer.ErrNoNewMsg) {
			return false
		}
		f.check(err)
		r.add(request.GetMsgList()...)
		c.ACK(context.Background(), request, consumer.ConsumeSuccess)
		return len(r.all()) >= 40
	}, func() string { return fmt.Sprint(len(r.all())) })
	f.exactly(numbered("m", 40), r)
	f.verdict()
}

func TestPullConsumerPullsFromAnOffset(t *testing.T) {
	f := start(t)
	f.createTopic(1)
	f.sendAll(f.producer(), "m", 30)
	c := f.pullConsumer()
	queue := &primitive.MessageQueue{Topic: f.topic, BrokerName: "broker-a", QueueId: 0}
	result, err := c.PullFrom(context.Background(), queue, 10, 15)
	f.check(err)
	if result.Status != primitive.PullFound || result.NextBeginOffset != 25 || result.MaxOffset != 30 || result.MinOffset != 0 {
		t.Fatalf("pulled %v", result)
	}
	var texts []string
	for _, m := range result.GetMessageExts() {
		texts = append(texts, string(m.Body))
	}
	if strings.Join(texts, ",") != strings.Join(numbered("m", 30)[10:25], ",") {
		t.Fatalf("pulled %v", texts)
	}
	f.verdict()
}
