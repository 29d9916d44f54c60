//! Pointers to variables, arrays and structs as C gives them.

use ccl::{Error, Result};

/// Refuses NULL, and an address at which no `T` can lie.
#[inline]
pub(crate) fn check<T>(at: *const T, name: &str, remedy: &str) -> Result<()> {
    if at.is_null() {
        return Err(Error::invalid(format!("{name} is NULL"), remedy));
    }
    if !at.is_aligned() {
        let what = format!("{name} is {at:p}, which is no multiple of {}", align_of::<T>());
        return Err(Error::invalid(what, remedy));
    }
    Ok(())
}

/// Writes to a variable.
///
/// # Safety
/// `at` is NULL or writable.
pub(crate) unsafe fn store<T>(at: *mut T, value: T, name: &str) -> Result<()> {
    check(at, name, "give the address of a variable")?;
    // SAFETY: not NULL, aligned, and writable by the caller's promise.
    unsafe { at.write(value) };
    Ok(())
}
