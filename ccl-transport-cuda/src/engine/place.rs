//! On which device a rank is.

use crate::driver::Driver;
use ccl_core::{Error, Result};

/// What a rank says of itself when it joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The device's identity, on every host and in every process.
    pub uuid: [u8; 16],
}

/// The version of the words.
const VERSION: u8 = 1;

impl Place {
    /// That of a rank on the device of this number.
    pub fn of(driver: Driver, device: u32) -> Result<Place> {
        Ok(Place { uuid: driver.device(device)?.uuid })
    }

    /// For a message.
    pub fn to_bytes(self) -> Vec<u8> {
        std::iter::once(VERSION).chain(self.uuid).collect()
    }

    /// What `to_bytes` wrote; `None` for the empty words of a rank on no device.
    pub fn from_bytes(bytes: &[u8]) -> Result<Option<Place>> {
        match bytes {
            [] => Ok(None),
            [VERSION, uuid @ ..] if uuid.len() == 16 => {
                Ok(Some(Place { uuid: std::array::from_fn(|at| uuid[at]) }))
            }
            other => Err(Error::invalid(
                format!("{} bytes that say on which device a rank is", other.len()),
                "use the same version of the library on all ranks",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back_and_others_are_refused() {
        let place = Place { uuid: *b"0123456789abcdef" };
        assert_eq!(Place::from_bytes(&place.to_bytes()).unwrap(), Some(place));
        assert_eq!(Place::from_bytes(&[]).unwrap(), None);
        for wrong in [&[1][..], &[2; 17], &[1; 18]] {
            assert!(Place::from_bytes(wrong).is_err());
        }
    }
}
