//! Passing descriptors: an abstract datagram socket, which vanishes with the process.

use ccl_core::{Error, Rank, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, recvmsg, sendmsg_addr,
    socket_with,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::time::Duration;

/// Token, rank, and what the descriptor is.
const LETTER: usize = 24;
/// In place of a number of lent memory: the descriptor is that of the rank's segment.
const SEGMENT: u32 = 0;

/// A descriptor and who sent it.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) from: Rank,
    /// The number under which it is lent; `None` for the segment itself.
    pub(crate) number: Option<u32>,
    pub(crate) fd: OwnedFd,
}

/// Where a peer takes letters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    /// Its segment's id.
    pub(crate) segment: u128,
    /// What a letter must begin with.
    pub(crate) token: u128,
}

/// A socket at which peers leave their descriptors.
#[derive(Debug)]
pub(crate) struct Mailbox {
    socket: OwnedFd,
    /// Names are public (`/proc/net/unix`); letters that do not begin with the token are thrown away.
    token: u128,
}

impl Mailbox {
    /// Opens the mailbox of the rank that owns this segment.
    pub(crate) fn open(segment: u128, token: u128) -> Result<Mailbox> {
        let failed = |call: &str, e: Errno| {
            Error::system(format!("{call} for passing descriptors"), e, "allow unix sockets (ulimit -n)")
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
            .map_err(|e| failed("socket", e))?;
        bind(&socket, &address(segment).map_err(|e| failed("naming a socket", e))?)
            .map_err(|e| failed("bind", e))?;
        Ok(Mailbox { socket, token })
    }

    /// Sends a descriptor, of memory lent under `number` or of the segment, to another mailbox; false if that is
    /// full for now.
    pub(crate) fn post(
        &self,
        from: Rank,
        number: Option<u32>,
        fd: BorrowedFd<'_>,
        to: Address,
    ) -> Result<bool, Errno> {
        let mut letter = [0; LETTER];
        letter[..16].copy_from_slice(&to.token.to_le_bytes());
        letter[16..20].copy_from_slice(&from.to_le_bytes());
        letter[20..].copy_from_slice(&number.unwrap_or(SEGMENT).to_le_bytes());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [fd];
        let fits = control.push(SendAncillaryMessage::ScmRights(&fds));
        debug_assert!(fits);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg_addr(&self.socket, &address(to.segment)?, &[IoSlice::new(&letter)], &mut control, flags)
        {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Whether the owner of another mailbox is gone, with its process or without.
    pub(crate) fn is_gone(&self, owner: Address) -> bool {
        let Ok(to) = address(owner.segment) else { return false };
        // What comes without a token is thrown away.
        let (mut nothing, flags) =
            (SendAncillaryBuffer::new(&mut []), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        let sent = sendmsg_addr(&self.socket, &to, &[IoSlice::new(&[])], &mut nothing, flags);
        matches!(sent, Err(Errno::CONNREFUSED))
    }

    /// Takes the next descriptor out, if one has come.
    pub(crate) fn take(&self) -> Result<Option<Letter>, Errno> {
        loop {
            let mut letter = [0; LETTER + 1];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let received =
                match recvmsg(&self.socket, &mut [IoSliceMut::new(&mut letter)], &mut control, flags) {
                    Ok(received) => received,
                    Err(Errno::AGAIN) => return Ok(None),
                    Err(Errno::INTR) => continue,
                    Err(e) => return Err(e),
                };
            let mut descriptors = control.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            });
            let fd = descriptors.next().and_then(|mut fds| fds.next());
            let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| letter[at + i]));
            if let Some(fd) = fd
                && received.bytes == LETTER
                && letter[..16] == self.token.to_le_bytes()
            {
                let number = Some(word(20)).filter(|number| *number != SEGMENT);
                return Ok(Some(Letter { from: word(16), number, fd }));
            }
        }
    }

    /// Waits until a letter is there, at most for `limit`.
    pub(crate) fn wait(&self, limit: Duration) {
        let limit = Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
        // Every outcome means "look again".
        let _ = poll(&mut [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)], Some(&limit));
    }
}

fn address(segment: u128) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("rdmaccl-{segment:032x}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_letters_with_the_token_and_a_descriptor_are_taken() {
        let (segment, token) = (crate::transport::random().unwrap(), 7);
        let mailbox = Mailbox::open(segment, token).unwrap();
        let stranger = Mailbox::open(crate::transport::random().unwrap(), 8).unwrap();
        let post = |bytes: &[u8], fd: Option<BorrowedFd<'_>>| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let fds: Vec<_> = fd.into_iter().collect();
            if !fds.is_empty() {
                assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            }
            let (to, flags) = (address(segment).unwrap(), SendFlags::DONTWAIT);
            sendmsg_addr(&stranger.socket, &to, &[IoSlice::new(bytes)], &mut control, flags).unwrap();
        };
        let right = [&token.to_le_bytes()[..], &3_u32.to_le_bytes(), &9_u32.to_le_bytes()].concat();
        let fd = stranger.socket.as_fd();
        post(b"", Some(fd));
        post(&right[..23], Some(fd));
        post(&[&right[..], b"x"].concat(), Some(fd));
        post(&right, None);
        assert!(stranger.post(3, None, fd, Address { segment, token: token + 1 }).unwrap());
        assert!(stranger.post(3, None, fd, Address { segment, token }).unwrap());
        assert!(stranger.post(4, Some(77), fd, Address { segment, token }).unwrap());
        let take = || mailbox.take().unwrap().map(|letter| (letter.from, letter.number));
        assert_eq!((take(), take()), (Some((3, None)), Some((4, Some(77)))));
        assert!(mailbox.take().unwrap().is_none(), "a letter that is not for us was taken");
        let owner = Address { segment, token };
        assert!(!stranger.is_gone(owner));
        assert!(mailbox.take().unwrap().is_none());
        drop(mailbox);
        assert!(stranger.is_gone(owner));
    }
}
