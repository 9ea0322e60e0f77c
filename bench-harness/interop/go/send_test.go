package interop

import (
	"bytes"
	"context"
	"math/rand"
	"strings"
	"sync"
	"testing"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func TestSyncSend(t *testing.T) {
	f := start(t)
	f.createTopic(4)
	results := f.sendAll(f.producer(), "m", 40)
	next := map[int]int64{}
	for _, result := range results {
		q := result.MessageQueue.QueueId
		if result.QueueOffset != next[q] {
			t.Fatalf("queue %d: offset %d, wanted %d", q, result.QueueOffset, next[q])
		}
		next[q]++
		if result.MsgID == "" || result.OffsetMsgID == "" {
			t.Fatalf("no ids in %v", result)
		}
	}
	r := &received{}
	f.push("*", r.accept)
	f.exactly(numbered("m", 40), r)
	f.verdict()
}

func TestAsyncSend(t *testing.T) {
	f := start(t)
	f.createTopic(4)
	p := f.producer()
	var wg sync.WaitGroup
	for _, text := range numbered("m", 200) {
		wg.Add(1)
		f.check(p.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
			defer wg.Done()
			if err != nil || result.Status != primitive.SendOK {
				t.Errorf("callback: %v %v", result, err)
			}
		}, message(f.topic, "TagA", text)))
	}
	wg.Wait()
	r := &received{}
	f.push("*", r.accept)
	f.exactly(numbered("m", 200), r)
	f.verdict()
}

func TestOnewaySend(t *testing.T) {
	f := start(t)
	f.createTopic(2)
	p := f.producer()
	for _, text := range numbered("m", 50) {
		f.check(p.SendOneWay(context.Background(), message(f.topic, "TagA", text)))
	}
	r := &received{}
	f.push("*", r.accept)
	f.exactly(numbered("m", 50), r)
	f.verdict()
}

func TestBatchSend(t *testing.T) {
	f := start(t)
	f.createTopic(1)
	p := f.producer()
	var batch []*primitive.Message
	for i, text := range numbered("b", 20) {
		m := message(f.topic, "Tag"+text, text).WithKeys([]string{"key" + text})
		m.WithProperty("index", numbered("", 20)[i])
		batch = append(batch, m)
	}
	result, err := p.SendSync(context.Background(), batch...)
	f.check(err)
	if result.Status != primitive.SendOK || result.QueueOffset != 0 {
		t.Fatalf("batch: %v", result)
	}
	f.sendAll(p, "after", 2)
	r := &received{}
	f.push("*", r.accept)
	f.exactly(append(numbered("b", 20), numbered("after", 2)...), r)
	for _, m := range r.all() {
		if text := string(m.Body); strings.HasPrefix(text, "b") {
			if m.GetTags() != "Tag"+text || m.GetKeys() != "key"+text || "b"+m.GetProperty("index") != text {
				t.Errorf("%s came with tag %q, keys %q, index %q", text, m.GetTags(), m.GetKeys(), m.GetProperty("index"))
			}
		}
	}
	f.verdict()
}

func TestBodies(t *testing.T) {
	f := start(t)
	f.createTopic(1)
	p := f.producer()
	random := make([]byte, 1<<20)
	rand.New(rand.NewSource(7)).Read(random)
	bodies := [][]byte{{1}, bytes.Repeat([]byte("u"), 100_000), random}
	for _, body := range bodies {
		_, err := p.SendSync(context.Background(), primitive.NewMessage(f.topic, append([]byte(nil), body...)))
		f.check(err)
	}
	r := &received{}
	f.push("*", r.accept)
	f.await("three bodies", func() bool { return len(r.all()) >= 3 }, func() string { return "fewer" })
	for _, m := range r.all() {
		if !bytes.Equal(m.Body, bodies[m.QueueOffset]) {
			t.Errorf("body %d is another one, of %d bytes", m.QueueOffset, len(m.Body))
		}
		if m.QueueOffset == 1 && m.StoreSize > 50_000 {
			t.Errorf("stored in %d bytes although the client compressed it", m.StoreSize)
		}
	}
	f.verdict()
}

func TestFirstSendMakesTheTopic(t *testing.T) {
	f := start(t)
	p := f.producer()
	f.sendAll(p, "m", 8)
	r := &received{}
	f.push("*", r.accept)
	f.exactly(numbered("m", 8), r)
	f.verdict()
}

func TestMessageComesBackAsItWasSent(t *testing.T) {
	f := start(t)
	f.createTopic(1)
	p := f.producer(producer.WithQueueSelector(producer.NewManualQueueSelector()))
	sent := message(f.topic, "Täg", "größe → 大小").WithKeys([]string{"k1", "k2"})
	sent.WithProperty("unicode", "währung €")
	sent.Queue = &primitive.MessageQueue{Topic: f.topic, BrokerName: "broker-a", QueueId: 0}
	result, err := p.SendSync(context.Background(), sent)
	f.check(err)
	r := &received{}
	f.push("*", r.accept)
	f.exactly([]string{"größe → 大小"}, r)
	m := r.all()[0]
	if m.GetTags() != "Täg" || m.GetKeys() != "k1 k2" || m.GetProperty("unicode") != "währung €" {
		t.Errorf("tags %q, keys %q, property %q", m.GetTags(), m.GetKeys(), m.GetProperty("unicode"))
	}
	if m.MsgId != result.MsgID || m.OffsetMsgId != result.OffsetMsgID || m.QueueOffset != result.QueueOffset {
		t.Errorf("sent as %v, came as %v", result, m)
	}
	if m.ReconsumeTimes != 0 || m.StoreTimestamp < m.BornTimestamp || !strings.HasPrefix(m.BornHost, "127.0.0.1") {
		t.Errorf("came as %v", m)
	}
	f.verdict()
}
