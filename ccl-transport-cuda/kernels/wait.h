// Waiting for flags, for a bounded time, and saying for what.
#pragma once
#include "program.h"

// A flag of a slot: the low bits of the piece's number, counted from 1; its length in bytes; and what is left of the call's tag. A slot
// is written anew only when its credit has come back, so its flag is this piece's or the one's `credits` before.
#define NUMBER_BITS 16
#define LENGTH_BITS 24
METHOD u64 slot_flag(u32 number, u32 len, u64 tag) {
    return (u64)(number & 0xffff) | (u64)len << NUMBER_BITS | tag << (NUMBER_BITS + LENGTH_BITS);
}
METHOD u32 number_of(u64 flag) { return (u32)(flag & 0xffff); }
METHOD u32 length_of(u64 flag) { return (u32)(flag >> NUMBER_BITS & 0xffffff); }
METHOD u64 tag_of(u64 flag) { return flag >> (NUMBER_BITS + LENGTH_BITS); }

// What a block gives up for. One is in the block's memory; `report` is filled by whoever claims the failure.
struct Trouble {
    Claim claimed;
    u32 failure, lane, move, tile, operand;
    u64 expected, found;
};

// Where a thread is, and until when it waits.
struct Watch {
    const Alarm *alarm;
    u64 deadline;
    Trouble *trouble;
    u32 lane, move, tile;

    METHOD void begin(const Call &call, Trouble &where) {
        alarm = call.alarm;
        deadline = call.limit ? now() + call.limit : 0;
        trouble = &where;
        lane = move = tile = 0;
    }
    METHOD void fail(u32 failure, u32 operand, u64 expected, u64 found) const {
        if (!claim(trouble->claimed)) return;
        trouble->failure = failure;
        trouble->lane = lane;
        trouble->move = move;
        trouble->tile = tile;
        trouble->operand = operand;
        trouble->expected = expected;
        trouble->found = found;
    }
    // Whether to go on waiting; looked up now and then.
    METHOD bool goes_on(u32 turn, u32 operand, u64 expected, u64 found) const {
        pause();
        if (turn % PATIENCE != 0) return true;
        // Another thread of the block has found out that the call goes wrong, and what this one waits for may never come.
        if (may_be_claimed(trouble->claimed)) return false;
        if (look(alarm) != 0) {
            fail(ABORTED, operand, expected, found);
            return false;
        }
        if (deadline != 0 && now() > deadline) {
            fail(LATE, operand, expected, found);
            return false;
        }
        return true;
    }
    // Until the low half of the flag is this; its value.
    METHOD bool await_mark(const Flag *flag, u32 mark, u32 operand, u64 &found) const {
        for (u32 turn = 1;; ++turn) {
            found = acquire(flag);
            if (low(found) == mark) return true;
            if (!goes_on(turn, operand, mark, low(found))) return false;
        }
    }
    // Until the slot holds the piece with this number; its flag.
    METHOD bool await_piece(const Flag *flag, u32 number, u32 operand, u64 &found) const {
        for (u32 turn = 1;; ++turn) {
            found = acquire(flag);
            if (number_of(found) == (number & 0xffff)) return true;
            if (!goes_on(turn, operand, number, number_of(found))) return false;
        }
    }
    // Until fewer than `credits` pieces of those sent are unreleased.
    METHOD bool await_credit(const Flag *credit, u32 sent, u32 credits, u32 operand) const {
        if (BUG_NO_CREDIT) return true;
        for (u32 turn = 1;; ++turn) {
            const u32 released = (u32)acquire(credit);
            if (sent - released < credits) return true;
            if (!goes_on(turn, operand, sent - credits + 1, released)) return false;
        }
    }
};

// Tells the host, behind a barrier. What a call before has said stays: it is the cause.
METHOD void tell(const Trouble &trouble, const Call &call, Report *report) {
    if (thread() != 0 || acquire(&report->failure) != 0) return;
    report->lane = trouble.lane;
    report->move = trouble.move;
    report->tile = trouble.tile;
    report->operand = trouble.operand;
    report->expected = trouble.expected;
    report->found = trouble.found;
    release(&report->failure, named(call.tag) | trouble.failure);
}
