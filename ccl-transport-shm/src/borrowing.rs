//! The memory that one peer has lent to this rank.

use crate::ledger::{Ledger, ROWS, row};
use crate::shm::Loan;

/// What is mapped of a peer's shared memory, by the row of its ledger.
#[derive(Debug, Default)]
pub(crate) struct Borrowing {
    /// Empty until the first loan.
    loans: Vec<Option<Loan>>,
    /// Loans whose rows hold others now: a piece in them may still be held.
    replaced: Vec<Loan>,
}

impl Borrowing {
    /// The loan of this number.
    #[inline]
    pub(crate) fn find(&self, number: u32) -> Option<&Loan> {
        self.loans.get(row(number))?.as_ref().filter(|loan| loan.number == number)
    }

    /// Keeps a loan, in place of the one in its row: the lender gives a row out again only when the memory is freed.
    pub(crate) fn keep(&mut self, loan: Loan) {
        if self.loans.is_empty() {
            self.loans.resize_with(ROWS, || None);
        }
        let at = row(loan.number);
        self.replaced.extend(self.loans[at].replace(loan));
    }

    /// Whether nothing was ever lent.
    pub(crate) fn is_empty(&self) -> bool {
        self.loans.is_empty()
    }

    /// Gives up what is not lent any more. Nobody may hold a piece in any of it.
    pub(crate) fn tidy(&mut self, ledger: &Ledger) {
        self.replaced.clear();
        for loan in &mut self.loans {
            loan.take_if(|loan| !ledger.lists(loan.number));
        }
    }
}
