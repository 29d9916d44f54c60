// The interpreter: runs one rank's program, whatever the plan.
//
// A block is a *worker*: it runs one lane, and of that lane's tiles its share: every `shares`-th one, as tiles do not depend on each
// other. Each share has links of its own, so a worker waits for the same worker of its peers only, and workers of a rank never for each
// other. All workers of all ranks must be on their devices at once: the host launches no more than fit.
//
// A move is made in four steps. A thread per operand finds where it is, and waits for its piece or its credit. Behind a barrier all
// threads combine the bytes. Behind another one, a thread per operand gives credits back and publishes what was sent.
#include "move.h"
#include "wait.h"

// Words of a lane's moves and operands that are kept near; those of longer lanes are read from where they are.
#define CODE 2048u

struct Shared {
    Trouble trouble;
    Operands operands;
    Wire wires[ENDS];
    u32 counts[ENDS];
    u32 scratch[SCRATCHES];
    u64 header[PROGRAM_HEADER];
    u64 code[CODE];
};

struct Worker {
    Program program;
    Call call;
    LaneCode lane;
    u32 index, share;
    Watch watch;
    const u64 *moves;
    const u64 *operands;

    METHOD bool begin(const Launch &launch, Shared &shared) {
        call = call_of(launch);
        program.words = call.program;
        const u32 lanes = program.lanes();
        index = block() % launch.blocks;
        log_begin(call, index);
        share = index / lanes;
        // More blocks than workers, or no lanes at all.
        if (lanes == 0 || share >= program.shares()) return false;
        watch.begin(call, shared.trouble);
        watch.lane = index % lanes;
        const u64 *code = program.lane(watch.lane);
#pragma unroll
        for (u32 i = 0; i < LANE_WORDS; ++i) lane.word[i] = code[i];
        if (lane.moves() == 0) return false;

        moves = program.move(lane.first());
        const MoveCode first = move(0), last = move(lane.moves() - 1);
        const u32 words = 2 * lane.moves(), all = last.first() + last.sources() + last.sinks() - first.first();
        operands = program.operand(first.first());
        const bool is_near = words + all <= CODE;
        if (is_near) {
#pragma unroll 1
            for (u32 i = thread(); i < words; i += threads()) shared.code[i] = moves[i];
#pragma unroll 1
            for (u32 i = thread(); i < all; i += threads()) shared.code[words + i] = operands[i];
            moves = shared.code;
            operands = shared.code + words;
        }
#pragma unroll 1
        for (u32 i = thread(); i < lane.ends(); i += threads()) {
            Wire wire = call.wires[lane.first_end() + i];
            wire.slots += (u64)share * program.credits() * program.slot();
            wire.flags += share * program.credits();
            wire.credit += share;
            wire.count += share;
            shared.wires[i] = wire;
            shared.counts[i] = *wire.count;
        }
#pragma unroll 1
        for (u32 i = thread(); i < PROGRAM_HEADER; i += threads()) shared.header[i] = call.program[i];
        if (thread() == 0) unclaim(shared.trouble.claimed);
        barrier();
        // From here on only the header is asked, which is near: what a flag is acquired for is not what to read anew.
        program.words = shared.header;
        return true;
    }
    METHOD MoveCode move(u32 index) const {
        MoveCode code;
        code.word[0] = moves[2 * index];
        code.word[1] = moves[2 * index + 1];
        return code;
    }
    METHOD OperandCode operand(const MoveCode &move, u32 first, u32 index) const {
        OperandCode code;
        code.word = operands[move.first() - first + index];
        return code;
    }
    METHOD u8 *slot(const Wire &wire, u32 number) const {
        return wire.slots + (u64)(number & (program.credits() - 1)) * program.slot();
    }
    METHOD u8 *scratch(u32 piece) const {
        const u32 index = share * program.scratches() + lane.first_scratch() + piece;
        return call.scratch + (u64)index * program.slot();
    }

    // Where an operand is in this tile, and that it may be touched.
    METHOD void ready(Shared &shared, const MoveCode &move, OperandCode code, u32 index, u64 skip, u32 len) const {
        u8 *at = 0;
        u32 found = len;
        u8 scaled = 0;
        const u32 end = (u32)code.place();
        switch (code.kind()) {
        case INPUT:
            at = (u8 *)call.input + code.place() + skip;
            scaled = program.reduces() && call.rule.scales;
            break;
        case OUTPUT: at = call.output + code.place() + skip; break;
        case SCRATCH:
            at = scratch(end);
            // Its length is that of the move which writes it, and known before: behind a barrier.
            if (!move.has_chunk() && index < move.sources()) found = shared.scratch[end];
            break;
        case RECEIVE: {
            const u32 number = shared.counts[end];
            const Wire &wire = shared.wires[end];
            u64 flag;
            if (!watch.await_piece(&wire.flags[number & (program.credits() - 1)], number + 1, index, flag)) return;
            at = slot(wire, number);
            found = length_of(flag);
            const u64 wanted = call.tag & 0xffffff, got = tag_of(flag) ^ move.salt();
            if (got != wanted) watch.fail(MISMATCH, index, wanted, got);
            if (move.has_chunk() && found != len) watch.fail(LENGTH, index, len, found);
            break;
        }
        case SEND:
            if (!watch.await_credit(shared.wires[end].credit, shared.counts[end], program.credits(), index)) return;
            at = slot(shared.wires[end], shared.counts[end]);
            break;
        }
        shared.operands.at[index] = at;
        shared.operands.len[index] = found;
        shared.operands.scaled[index] = scaled;
    }

    // Counts what was waited for, while nobody reads the counts, and notes what is in scratch pieces.
    METHOD void count(Shared &shared, const MoveCode &move, OperandCode code, u32 index, u32 len) const {
        const Kind kind = code.kind();
        if (kind == RECEIVE || kind == SEND) shared.counts[code.place()] += 1;
        if (kind == SCRATCH && index >= move.sources()) shared.scratch[code.place()] = len;
    }

    METHOD void publish(const Shared &shared, const MoveCode &move, OperandCode code, u32 len) const {
        const Kind kind = code.kind();
        if (kind != RECEIVE && kind != SEND) return;
        const u32 end = (u32)code.place(), number = shared.counts[end];
        const Wire &wire = shared.wires[end];
        if (kind == RECEIVE) {
            release(wire.credit, number);
        } else {
            release(&wire.flags[(number - 1) & (program.credits() - 1)], slot_flag(number, len, call.tag ^ move.salt()));
        }
    }

    // How often moves are made, of which this is the first.
    METHOD u32 tiles(u32 index) const {
        if (!lane.is_queue()) return lane.tiles();
        const u64 len = move(index).len(), tile = program.tile();
        return len <= tile ? 1 : (u32)((len + tile - 1) / tile);
    }

    template <class F> METHOD void run(Shared &shared) {
        // Tile by tile all moves; of a queue move by move all tiles.
        const u32 step = lane.is_queue() ? 1 : lane.moves();
#pragma unroll 1
        for (u32 from = 0; from < lane.moves(); from += step) {
            if (!run_some<F>(shared, from, from + step)) return;
        }
    }

    template <class F> METHOD bool run_some(Shared &shared, u32 from, u32 to) {
        const u32 first = move(0).first(), tiles = this->tiles(from);
#pragma unroll 1
        for (u32 tile = share; tile < tiles; tile += program.shares()) {
            const u64 skip = (u64)tile * program.tile();
#pragma unroll 1
            for (u32 index = from; index < to; ++index) {
                watch.tile = tile;
                watch.move = index;
                const MoveCode code = move(index);
                const u32 sources = code.sources(), sinks = code.sinks();
                const u64 rest = code.len() > skip ? code.len() - skip : 0;
                // Past the end of a chunk nothing is left of it, and its end is the place.
                const u64 offset = code.len() > skip ? skip : code.len();
                u32 len = rest < program.tile() ? (u32)rest : program.tile();
#pragma unroll 1
                for (u32 i = thread(); i < sources + sinks; i += threads()) {
                    ready(shared, code, operand(code, first, i), i, offset, len);
                }
                barrier();
                if (is_claimed(shared.trouble.claimed)) return false;
                if (!code.has_chunk()) len = shared.operands.len[0];
                u32 other = len;
#pragma unroll 1
                for (u32 i = thread(); i < sources + sinks; i += threads()) {
                    if (!code.has_chunk() && i < sources && shared.operands.len[i] != len) other = shared.operands.len[i];
                    count(shared, code, operand(code, first, i), i, len);
                }
                make_move<F>(shared.operands, sources, sinks, len, call.rule);
                if (!BUG_NO_BARRIER) barrier();
                // Here, where nobody looks whether there is a failure.
                if (other != len) watch.fail(LENGTH, 0, len, other);
#pragma unroll 1
                for (u32 i = thread(); i < sources + sinks; i += threads()) {
                    publish(shared, code, operand(code, first, i), len);
                }
            }
        }
        return true;
    }

    METHOD void end(Shared &shared) const {
        barrier();
        if (is_claimed(shared.trouble.claimed)) {
            // The links are in the middle of the call: what their counts are does not matter any more.
            tell(shared.trouble, call, call.reports + index);
            return;
        }
        log_end(call, index);
#pragma unroll 1
        for (u32 i = thread(); i < lane.ends(); i += threads()) *shared.wires[i].count = shared.counts[i];
    }
};

template <class F> METHOD void interpret(const Launch &launch, Shared &shared) {
    if (!is_wanted(call_of(launch))) return;
    Worker worker;
    if (!worker.begin(launch, shared)) {
        log_end(worker.call, worker.index);
        return;
    }
    worker.run<F>(shared);
    worker.end(shared);
}

#if defined(FAMILY)
KERNEL(rdmaccl_interpret, (const Launch launch)) {
    SHARED(Shared, shared);
    interpret<FAMILY>(launch, shared);
}
#endif
