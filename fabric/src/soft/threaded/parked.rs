//! Posts that wait for room in the inner NIC's send queue, each QP's in their order.
//!
//! A SEND waits where the inner queue is full. What was posted on its QP after it waits behind it, READs too: work on one
//! QP is carried in the order of its posts.

use super::crossing::Post;
use std::collections::VecDeque;

/// The posts that wait. Sized once.
pub(super) struct Parked {
    /// A READ's further cells follow its first one.
    cells: VecDeque<Post>,
    /// How many posts of each QP wait.
    of_qp: Vec<u32>,
    /// The round in which a QP's post was last refused.
    refused_in: Vec<u64>,
    round: u64,
}

impl Parked {
    pub(super) fn new(qps_max: u32, cells_max: usize) -> Self {
        Self {
            cells: VecDeque::with_capacity(cells_max),
            of_qp: vec![0; qps_max as usize],
            refused_in: vec![0; qps_max as usize],
            round: 0,
        }
    }

    /// Whether a post of this QP has to wait behind others of it.
    pub(super) fn holds(&self, qp_index: u32) -> bool {
        self.of_qp[qp_index as usize] > 0
    }

    /// Parks a post, a READ's first cell; the READ's others follow with [`Parked::push_cell`].
    pub(super) fn push(&mut self, post: Post) {
        self.of_qp[post.qp_index as usize] += 1;
        self.cells.push_back(post);
    }

    pub(super) fn push_cell(&mut self, cell: Post) {
        self.cells.push_back(cell);
    }

    /// Begins a look at everything that waits; the cells to look at.
    pub(super) fn begin(&mut self) -> usize {
        self.round += 1;
        if self.cells.is_empty() {
            self.cells.clear(); // from its first place again: places never used stay untouched memory
        }
        self.cells.len()
    }

    /// The next post to look at, which is to be [`Parked::keep`]ed or [`Parked::gone`]. A READ's other cells are the next
    /// of [`Parked::pop_cell`].
    pub(super) fn pop(&mut self) -> Post {
        self.pop_cell()
    }

    pub(super) fn pop_cell(&mut self) -> Post {
        self.cells.pop_front().expect("as many cells as were parked")
    }

    /// Whether an earlier post of its QP was refused in this look.
    pub(super) fn is_behind(&self, post: &Post) -> bool {
        self.refused_in[post.qp_index as usize] == self.round
    }

    /// The post waits on, and so does what is behind it.
    pub(super) fn keep(&mut self, post: Post) {
        self.refused_in[post.qp_index as usize] = self.round;
        self.cells.push_back(post);
        for _ in 1..post.cells() {
            let cell = self.pop_cell();
            self.cells.push_back(cell);
        }
    }

    /// The post was carried on or refused for good.
    pub(super) fn gone(&mut self, post: &Post) {
        self.of_qp[post.qp_index as usize] -= 1;
    }
}
