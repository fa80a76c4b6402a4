//! The rules of the `Nic` trait, checked for every NIC.
//!
//! Software NICs run over `shm:` and `tcp:`, polled by their user and on a thread of their own, without
//! limits and with those of two devices. Simulated NICs run with the limits of three. NICs on verbs run where
//! the feature `verbs` is on and the environment names a device.
//!
//! All cases are driven by polling and bounded by a deadline; nothing sleeps. Besides its own subject every
//! case checks the rules in `harness.rs`: each request completes once, READs are in order, nothing follows
//! the end of a QP, no byte beyond a payload changes. The random case prints its seed;
//! `JET_CONFORMANCE_SEED=N` runs it again.
#![allow(clippy::cast_possible_truncation)] // sizes in these cases are small

mod connections;
mod crowds;
mod endings;
mod fabrics;
#[cfg(feature = "verbs")]
mod foreign;
mod harness;
mod order;
mod random;
mod reads;
mod sends;
mod waking;

macro_rules! suite {
    (@case [$(#[$how:meta])*] $fabric:expr; $module:ident $case:ident) => {
        #[test]
        $(#[$how])*
        fn $case() {
            crate::$module::$case(&$fabric);
        }
    };
    ($how:tt $fabric:expr; $($module:ident: $($case:ident),+;)+) => {
        $($(suite! { @case $how $fabric; $module $case })+)+
    };
}

/// Runs the cases for every NIC.
macro_rules! conforms {
    ($($(#[$how:meta])* $name:ident: $fabric:expr;)+) => {
        $(mod $name {
            suite! { [$(#[$how])*] $fabric;
                connections:
                    private_data_travels_both_ways,
                    a_rejected_connection_is_stale_at_both_ends,
                    nobody_listens,
                    an_address_in_use_is_refused,
                    connections_beyond_the_table_are_refused,
                    two_hundred_connections_of_which_eight_talk;
                sends:
                    sends_of_every_size_arrive_in_order,
                    many_qps_share_one_srq,
                    without_an_srq_entry_only_that_qp_waits,
                    more_than_the_limits_is_refused,
                    a_full_queue_says_so_and_works_again,
                    a_send_that_does_not_fit_its_entry_ends_the_connection,
                    a_poll_of_one_loses_nothing;
                reads:
                    reads_fill_exactly_their_stretches,
                    reads_complete_in_order,
                    reads_beyond_the_connections_depth_are_refused_until_one_is_done,
                    a_connection_has_the_lesser_depth_of_both_ends,
                    both_ends_read_from_each_other,
                    reads_beyond_what_is_allowed_change_nothing,
                    a_key_deregistered_after_use_is_refused,
                    local_memory_is_protected;
                endings:
                    a_disconnect_flushes_what_is_in_flight,
                    both_ends_may_disconnect_at_once,
                    a_farewell_arrives_before_the_end,
                    an_end_without_an_entry_for_the_farewell_ends_all_the_same,
                    a_lost_peer_flushes_what_is_in_flight,
                    a_read_succeeds_only_with_bytes_from_before_its_peer_left,
                    a_peer_lost_before_the_answer_ends_the_request;
                waking:
                    a_sleeper_wakes_for_everything,
                    two_sleepers_never_miss_each_other;
                random:
                    random_traffic_arrives_as_it_was_sent;
            }
        })+
    };
}

/// Runs the cases with several processes.
macro_rules! outlives_other_processes {
    ($($(#[$how:meta])* $name:ident: $fabric:ident;)+) => {
        $(mod $name {
            suite! { [$(#[$how])*] crate::fabrics::$fabric;
                endings:
                    a_killed_peer_flushes_what_is_in_flight;
            }
        })+
    };
}

/// Runs the cases for a device, and for a NIC that keeps to a device's limits.
macro_rules! completes_as_a_device {
    ($($(#[$how:meta])* $name:ident: $fabric:expr;)+) => {
        $(mod $name {
            suite! { [$(#[$how])*] $fabric;
                order:
                    a_send_completes_after_the_reads_before_it,
                    no_send_completes_before_what_was_posted_before_it;
            }
        })+
    };
}

/// Runs the cases for fabrics whose limits come from the options alone, without a profile.
macro_rules! refuses_who_answers_no_read {
    ($($(#[$how:meta])* $name:ident: $fabric:ident;)+) => {
        $(mod $name {
            suite! { [$(#[$how])*] crate::fabrics::$fabric;
                reads: a_peer_that_answers_no_read_is_refused;
            }
        })+
    };
}

conforms! {
    shm: crate::fabrics::Shm;
    tcp: crate::fabrics::Tcp;
    shm_threaded: crate::fabrics::ShmThreaded;
    tcp_threaded: crate::fabrics::TcpThreaded;
    tcp_attended: crate::fabrics::TcpAttended;
    shm_smallest: crate::fabrics::ShmSmallest;
    tcp_smallest: crate::fabrics::TcpSmallest;
    shm_threaded_smallest: crate::fabrics::ShmThreadedSmallest;
    tcp_threaded_smallest: crate::fabrics::TcpThreadedSmallest;
    shm_connectx_6: crate::fabrics::ShmConnectX6;
    tcp_connectx_6: crate::fabrics::TcpConnectX6;
    shm_threaded_connectx_6: crate::fabrics::ShmThreadedConnectX6;
    tcp_threaded_connectx_6: crate::fabrics::TcpThreadedConnectX6;
    sim_smallest: crate::fabrics::Sim::smallest();
    sim_connectx_6: crate::fabrics::Sim::connectx_6();
    sim_rxe: crate::fabrics::Sim::rxe();
}

outlives_other_processes! {
    shm_processes: Shm;
    tcp_processes: Tcp;
    shm_threaded_processes: ShmThreaded;
    tcp_threaded_processes: TcpThreaded;
    tcp_attended_processes: TcpAttended;
    shm_smallest_processes: ShmSmallest;
    tcp_smallest_processes: TcpSmallest;
    shm_threaded_smallest_processes: ShmThreadedSmallest;
    tcp_threaded_smallest_processes: TcpThreadedSmallest;
    shm_connectx_6_processes: ShmConnectX6;
    tcp_connectx_6_processes: TcpConnectX6;
    shm_threaded_connectx_6_processes: ShmThreadedConnectX6;
    tcp_threaded_connectx_6_processes: TcpThreadedConnectX6;
}

completes_as_a_device! {
    shm_smallest_order: crate::fabrics::ShmSmallest;
    tcp_smallest_order: crate::fabrics::TcpSmallest;
    shm_threaded_smallest_order: crate::fabrics::ShmThreadedSmallest;
    tcp_threaded_smallest_order: crate::fabrics::TcpThreadedSmallest;
    shm_connectx_6_order: crate::fabrics::ShmConnectX6;
    tcp_connectx_6_order: crate::fabrics::TcpConnectX6;
    shm_threaded_connectx_6_order: crate::fabrics::ShmThreadedConnectX6;
    tcp_threaded_connectx_6_order: crate::fabrics::TcpThreadedConnectX6;
    sim_smallest_order: crate::fabrics::Sim::smallest();
    sim_connectx_6_order: crate::fabrics::Sim::connectx_6();
    sim_rxe_order: crate::fabrics::Sim::rxe();
}

refuses_who_answers_no_read! {
    shm_refusal: Shm;
    tcp_refusal: Tcp;
    shm_threaded_refusal: ShmThreaded;
    tcp_threaded_refusal: TcpThreaded;
    tcp_attended_refusal: TcpAttended;
}

#[cfg(feature = "verbs")]
conforms! {
    #[ignore = "needs an RDMA device, named by JET_RDMA_ADDRESS: docs/rdma.md"]
    rdma: crate::fabrics::Rdma;
}

#[cfg(feature = "verbs")]
outlives_other_processes! {
    #[ignore = "needs an RDMA device, named by JET_RDMA_ADDRESS: docs/rdma.md"]
    rdma_processes: Rdma;
}

#[cfg(feature = "verbs")]
completes_as_a_device! {
    #[ignore = "needs an RDMA device, named by JET_RDMA_ADDRESS: docs/rdma.md"]
    rdma_order: crate::fabrics::Rdma;
}

#[cfg(feature = "verbs")]
refuses_who_answers_no_read! {
    #[ignore = "needs an RDMA device, named by JET_RDMA_ADDRESS: docs/rdma.md"]
    rdma_refusal: Rdma;
}

/// Takes the suite's place without verbs: a run that asks for verbs fails here, instead of passing with no
/// tests.
#[cfg(not(feature = "verbs"))]
mod rdma {
    #[test]
    #[ignore = "needs the feature verbs: docs/rdma.md"]
    fn needs_the_feature_verbs() {
        panic!("built without verbs: cargo test -p jet-fabric --features verbs --test conformance");
    }
}
