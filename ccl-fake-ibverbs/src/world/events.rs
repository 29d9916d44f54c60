//! Asynchronous events and completion events.

use super::{Key, World};

impl World {
    /// Raises an event on every open context of a device.
    pub(super) fn raise(&mut self, device: usize, code: u32, about: u32) {
        for context in self.contexts.values_mut().filter(|context| context.device == device) {
            context.events.push((code, about));
        }
    }

    /// Raises an event on one context.
    pub(super) fn raise_on(&mut self, context: Key, code: u32, about: u32) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.events.push((code, about));
        }
    }

    /// Forgets the events of what is about to go.
    pub(super) fn forget_events(&mut self, codes: &[u32], about: u32) {
        for context in self.contexts.values_mut() {
            context.events.forget(|(code, key)| *key == about && codes.contains(code));
        }
    }
}
