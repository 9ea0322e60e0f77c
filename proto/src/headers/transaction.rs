//! Transactions (37, 39, 323). Source: wire-protocol sheet 5.9, 8.
use crate::headers::header;

header! {
    /// 37.
    pub struct EndTransaction<'c> {
        producer_group: &'c str = "producerGroup",
        /// Offset in the half queue.
        tran_state_table_offset: i64 = "tranStateTableOffset",
        commit_log_offset: i64 = "commitLogOffset",
        /// 0 unknown, 8 commit, 12 rollback.
        commit_or_rollback: i32 = "commitOrRollback",
        from_transaction_check: bool = "fromTransactionCheck" or false,
        /// UNIQ_KEY.
        msg_id: &'c str = "msgId",
        transaction_id: Option<&'c str> = "transactionId",
        topic: Option<&'c str> = "topic",
    }
    /// 39 to a producer.
    pub struct CheckTransactionState<'c> {
        topic: Option<&'c str> = "topic",
        tran_state_table_offset: i64 = "tranStateTableOffset",
        commit_log_offset: i64 = "commitLogOffset",
        msg_id: Option<&'c str> = "msgId",
        transaction_id: Option<&'c str> = "transactionId",
        offset_msg_id: Option<&'c str> = "offsetMsgId",
        broker_name: Option<&'c str> = "bname",
    }
    /// 323.
    pub struct ResumeCheckHalfMessage<'c> {
        topic: Option<&'c str> = "topic",
        /// Offset message id.
        msg_id: Option<&'c str> = "msgId",
    }
}
