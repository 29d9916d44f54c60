//! The kinds of faults: what is done to which ranks, and when.

use crate::step::Bend;

/// What happens in a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    KillJoining,
    KillConnecting,
    KillInCall,
    KillBetween,
    KillIdle,
    KillHead,
    KillSeveral,
    KillAllButOne,
    KillInShrink,
    KillInDestroy,
    Exit,
    Panic,
    Leave,
    Missing,
    Abort,
    AbortJoining,
    Revoke,
    FreezeThaw,
    FreezeKill,
    FreezeShort,
    Slow,
    Absent,
    DisagreeCount,
    DisagreeType,
    DisagreeOperator,
    DisagreeRoot,
    DisagreeCollective,
    DisagreeAlgorithm,
    DisagreeTransfer,
    DisagreeOrder,
    Garbage,
}

/// What a culprit does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Dies of SIGKILL.
    Kill,
    /// Stops by SIGSTOP; the runner sends what comes next.
    Stop(Next),
    /// Calls `exit(0)`.
    Exit,
    /// Panics, and unwinds through the communicator.
    Panic,
    /// Destroys its communicator in order while the others go on.
    Leave,
    /// Aborts from another thread.
    Abort,
    /// Revokes the communicator, and tries to go on.
    Revoke,
    /// Makes no call, until the others have noticed.
    Stay,
    /// Comes later than the others.
    Sleep,
    /// Makes another call.
    Bend(Bend),
    /// Makes two calls in the wrong order.
    Swap,
    /// Nothing: the fault comes from outside.
    None,
}

/// What happens to a stopped process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It goes on long after the others have given it up.
    Thaw,
    /// It is killed after the others have given it up.
    Kill,
    /// It goes on before the others give it up.
    Soon,
}

/// When a culprit does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// A random time after it has begun to join.
    Joining,
    /// A random time after it has begun the step, from another thread.
    During,
    /// Before the step, while the others are in it.
    Before,
    /// While no rank is in a call.
    Idle,
    /// The first culprit as with `During`; the others a random time after they have begun to shrink.
    Shrinking,
    /// A random time after it has begun to destroy its communicator.
    Destroying,
}

/// What the other ranks must get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Right results and no error.
    Right,
    /// An error that names the culprit.
    Error,
    /// Either.
    Any,
}

impl Kind {
    pub(crate) const ALL: [Kind; 31] = [
        Kind::KillJoining,
        Kind::KillConnecting,
        Kind::KillInCall,
        Kind::KillBetween,
        Kind::KillIdle,
        Kind::KillHead,
        Kind::KillSeveral,
        Kind::KillAllButOne,
        Kind::KillInShrink,
        Kind::KillInDestroy,
        Kind::Exit,
        Kind::Panic,
        Kind::Leave,
        Kind::Missing,
        Kind::Abort,
        Kind::AbortJoining,
        Kind::Revoke,
        Kind::FreezeThaw,
        Kind::FreezeKill,
        Kind::FreezeShort,
        Kind::Slow,
        Kind::Absent,
        Kind::DisagreeCount,
        Kind::DisagreeType,
        Kind::DisagreeOperator,
        Kind::DisagreeRoot,
        Kind::DisagreeCollective,
        Kind::DisagreeAlgorithm,
        Kind::DisagreeTransfer,
        Kind::DisagreeOrder,
        Kind::Garbage,
    ];

    /// As options and tables have it, and what it is in words.
    pub(crate) fn names(self) -> (&'static str, &'static str) {
        match self {
            Kind::KillJoining => ("kill-joining", "SIGKILL while it joins"),
            Kind::KillConnecting => ("kill-connecting", "SIGKILL while its first links are made"),
            Kind::KillInCall => ("kill-in-call", "SIGKILL in a call"),
            Kind::KillBetween => ("kill-between", "SIGKILL between calls, while the others call"),
            Kind::KillIdle => ("kill-idle", "SIGKILL while nobody calls"),
            Kind::KillHead => ("kill-head", "SIGKILL of rank 0 in a call"),
            Kind::KillSeveral => ("kill-several", "SIGKILL of several ranks"),
            Kind::KillAllButOne => ("kill-all-but-one", "SIGKILL of all ranks but one"),
            Kind::KillInShrink => {
                ("kill-in-shrink", "SIGKILL in a call, and of another rank in the shrink after it")
            }
            Kind::KillInDestroy => ("kill-in-destroy", "SIGKILL while all destroy the communicator"),
            Kind::Exit => ("exit", "`exit(0)` without destroying the communicator"),
            Kind::Panic => ("panic", "a panic that unwinds through the communicator"),
            Kind::Leave => ("leave", "it destroys the communicator while the others call"),
            Kind::Missing => ("missing", "it never joins"),
            Kind::Abort => ("abort", "it aborts from another thread"),
            Kind::AbortJoining => ("abort-joining", "it aborts while it joins"),
            Kind::Revoke => ("revoke", "it revokes the communicator"),
            Kind::FreezeThaw => ("freeze-thaw", "SIGSTOP, SIGCONT after it was given up"),
            Kind::FreezeKill => ("freeze-kill", "SIGSTOP, SIGKILL after it was given up"),
            Kind::FreezeShort => ("freeze-short", "SIGSTOP, SIGCONT within the freeze timeout"),
            Kind::Slow => ("slow", "it comes late, within the timeout"),
            Kind::Absent => ("absent", "it never makes the call"),
            Kind::DisagreeCount => ("disagree-count", "another count"),
            Kind::DisagreeType => ("disagree-type", "another type"),
            Kind::DisagreeOperator => ("disagree-operator", "another operator"),
            Kind::DisagreeRoot => ("disagree-root", "another root"),
            Kind::DisagreeCollective => ("disagree-collective", "another collective"),
            Kind::DisagreeAlgorithm => ("disagree-algorithm", "another algorithm"),
            Kind::DisagreeTransfer => ("disagree-transfer", "another count in a transfer"),
            Kind::DisagreeOrder => ("disagree-order", "two calls in the other order"),
            Kind::Garbage => ("garbage", "strangers at the bootstrap's ports: nonsense, silence, floods"),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.names().0
    }

    /// How often it is drawn, against the others. Those that wait for a deadline take long.
    pub(crate) fn weight(self) -> u64 {
        match self {
            Kind::KillInCall => 8,
            Kind::KillJoining | Kind::KillConnecting | Kind::KillBetween | Kind::KillSeveral => 4,
            Kind::KillIdle | Kind::KillHead | Kind::KillAllButOne | Kind::KillInDestroy | Kind::Abort => 3,
            Kind::KillInShrink => 4,
            Kind::Exit | Kind::Panic | Kind::Revoke | Kind::FreezeThaw | Kind::Absent => 2,
            _ => 1,
        }
    }

    pub(crate) fn deed(self) -> Deed {
        match self {
            Kind::KillJoining
            | Kind::KillConnecting
            | Kind::KillInCall
            | Kind::KillBetween
            | Kind::KillIdle
            | Kind::KillHead
            | Kind::KillSeveral
            | Kind::KillAllButOne
            | Kind::KillInShrink
            | Kind::KillInDestroy => Deed::Kill,
            Kind::Exit => Deed::Exit,
            Kind::Panic => Deed::Panic,
            Kind::Leave => Deed::Leave,
            Kind::Missing | Kind::Absent => Deed::Stay,
            Kind::Abort | Kind::AbortJoining => Deed::Abort,
            Kind::Revoke => Deed::Revoke,
            Kind::FreezeThaw => Deed::Stop(Next::Thaw),
            Kind::FreezeKill => Deed::Stop(Next::Kill),
            Kind::FreezeShort => Deed::Stop(Next::Soon),
            Kind::Slow => Deed::Sleep,
            Kind::DisagreeCount => Deed::Bend(Bend::Count),
            Kind::DisagreeType => Deed::Bend(Bend::Type),
            Kind::DisagreeOperator => Deed::Bend(Bend::Operator),
            Kind::DisagreeRoot => Deed::Bend(Bend::Root),
            Kind::DisagreeCollective => Deed::Bend(Bend::Collective),
            Kind::DisagreeAlgorithm => Deed::Bend(Bend::Algorithm),
            Kind::DisagreeTransfer => Deed::Bend(Bend::Transfer),
            Kind::DisagreeOrder => Deed::Swap,
            Kind::Garbage => Deed::None,
        }
    }

    /// Where there is a choice, `coin` takes it.
    pub(crate) fn moment(self, coin: bool) -> Moment {
        match self {
            Kind::KillJoining | Kind::AbortJoining | Kind::Missing => Moment::Joining,
            Kind::KillConnecting
            | Kind::KillInCall
            | Kind::KillHead
            | Kind::KillSeveral
            | Kind::KillAllButOne
            | Kind::Abort => Moment::During,
            Kind::KillInShrink => Moment::Shrinking,
            Kind::KillIdle => Moment::Idle,
            Kind::KillInDestroy => Moment::Destroying,
            Kind::Exit | Kind::FreezeThaw | Kind::FreezeKill | Kind::FreezeShort if coin => Moment::During,
            _ => Moment::Before,
        }
    }

    pub(crate) fn outcome(self) -> Outcome {
        match self {
            Kind::FreezeShort | Kind::Slow | Kind::Garbage => Outcome::Right,
            Kind::KillInDestroy => Outcome::Any,
            _ => Outcome::Error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_listed_once_and_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), Kind::ALL.len());
        assert!(Kind::ALL.is_sorted_by(|a, b| a < b), "in the order of their declaration, each once");
    }
}
