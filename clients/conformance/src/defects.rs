//! The defects of a [broken worker](crate::broken_worker), each with a scenario that finds it.

/// A way to violate the protocol on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// Waits without KEEP.
    NoKeep,
    NeverRenews,
    /// Renews each lock only after the reply for the previous lock.
    RenewsOneByOne,
    /// Reports a loss 800 ms late.
    LateLoss,
    SwallowsCancel,
    /// Repeats a request under a different owner name.
    NewOwner,
    NoConfirm,
    NoGiveUp,
    /// Always counts the error `NOTHELD` as a successful release.
    BlindRelease,
    UnsortedKeys,
    RepeatsGuarded,
    /// Exceeds the wait limit.
    NoWaitLimit,
    /// Does not repeat a release.
    OneRelease,
    /// Counts the lease from the time of the reply, not of the request.
    LateLease,
    /// Lets the call wait that asked last, not first.
    LastFirst,
    /// Repeats a release that had no reply, but only after the next acquisition.
    LateRelease,
}

/// The defects, each with a scenario that finds it.
pub(crate) const DEFECTS: [(Defect, &str); 16] = [
    (Defect::NoKeep, "a_waiter_keeps_its_place_over_a_cut_connection"),
    (Defect::NeverRenews, "no_lock_is_lost_when_a_connection_is_cut"),
    (Defect::RenewsOneByOne, "locks_are_renewed_in_one_pipeline"),
    (Defect::LateLoss, "a_lock_on_a_stopped_server_is_lost_when_its_lease_is_over"),
    (Defect::SwallowsCancel, "a_cancelled_wait_leaves_nothing_behind"),
    (Defect::NewOwner, "a_request_whose_grant_is_lost_is_sent_again"),
    (Defect::NoConfirm, "a_wait_ends_with_a_grant_which_is_renewed_to_the_full_lease"),
    (Defect::NoGiveUp, "a_cancelled_wait_gives_up"),
    (Defect::BlindRelease, "otherwise_NOTHELD_means_lost"),
    (Defect::UnsortedKeys, "several_keys_are_tried_in_one_pipeline_in_order"),
    (Defect::RepeatsGuarded, "a_guarded_command_is_not_sent_again_after_a_lost_reply"),
    (Defect::NoWaitLimit, "a_wait_limit_is_kept_although_the_server_hangs_during_the_wait"),
    (Defect::OneRelease, "a_release_whose_reply_is_lost_is_sent_again"),
    (Defect::LateLease, "a_lease_counts_from_the_request"),
    (Defect::LastFirst, "calls_beyond_the_waiting_connections_take_turns"),
    (Defect::LateRelease, "a_named_owner_keeps_what_it_acquires_after_a_lost_release"),
];
