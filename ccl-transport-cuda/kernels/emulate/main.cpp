// The kernels on threads of the CPU, for ThreadSanitizer: a device's thread is a thread, a rank is a stream.
//
//   emulate FILE    runs all cases of the file, and prints a line for each: what came out
//   emulate layout  prints the sizes and limits that ccl-transport-cuda/src/program must know too
//
// A file is a row of 64-bit words and bytes, written by ccl-transport-cuda/tests/emulation. Per case and rank it has the program, the
// input and the output that is right; so each rank compares at once, while its peers may still be at work.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"

thread_local Emulated emulated;

namespace {

// The address of the case at hand that stands for the memories of all its ranks, which have `bytes` each.
struct Multicast {
    const u8 *at = nullptr;
    size_t bytes = 0;
    std::vector<u8 *> memories;
} multicast_memory;

struct File {
    std::vector<u8> bytes;
    size_t at = 0;

    u64 word() {
        u64 value;
        take(&value, sizeof value);
        return value;
    }
    std::vector<u8> buffer() {
        std::vector<u8> into(word());
        take(into.data(), into.size());
        return into;
    }
    void take(void *into, size_t len) {
        if (bytes.size() - at < len) {
            fprintf(stderr, "the file ends within a case\n");
            exit(2);
        }
        if (len != 0) memcpy(into, &bytes[at], len);
        at += len;
    }
};

// Memory of no type, for vectors. Fresh memory of a device is zero where flags are.
struct Memory {
    std::unique_ptr<void, void (*)(void *)> held{nullptr, free};

    template <class T> T *make(size_t count) {
        const size_t bytes = (count * sizeof(T) + 64) / 64 * 64;
        void *fresh = aligned_alloc(64, bytes);
        memset(fresh, 0, bytes);
        held.reset(fresh);
        return static_cast<T *>(fresh);
    }
};

struct End {
    u64 is_send, peer, channel;
};

struct Rank {
    std::vector<u64> program;
    std::vector<End> ends;
    // Of one launch after the other, and again from the first: what was left by a launch before is not right by chance.
    std::vector<std::vector<u8>> input, right;
    u64 in_place, tag, skew;
    // What it runs on.
    std::vector<Memory> memory;
    std::vector<Wire> wires;
    u8 *from, *into;
    Team team;
    Book *book;
    Launch launch;
    Report *reports;
    pthread_barrier_t stream;
    std::vector<pthread_barrier_t> barriers;
    std::vector<void *> shared;
    u64 wrong = 0;
    bool is_over = false;

    template <class T> T *make(size_t count) {
        memory.emplace_back();
        return memory.back().make<T>(count);
    }
};

struct Case {
    u64 what, family, blocks, threads, rounds, start, misaligned, absent, abort_after, limit, count, divisor, divides, room;
    u64 rule[5];
    bool is_gang, agrees;
    std::vector<Rank> ranks;
    Alarm *alarm;
};

void launch(const Case &c, const Launch &launch) { play_kernel((What)c.what, c.family, launch); }

Case read(File &file) {
    Case c = {};
    for (u64 *field : {&c.what, &c.family, &c.blocks, &c.threads, &c.rounds, &c.start, &c.misaligned, &c.absent, &c.abort_after,
                       &c.limit, &c.count, &c.divisor, &c.divides, &c.room}) {
        *field = file.word();
    }
    for (u64 &word : c.rule) word = file.word();
    c.ranks = std::vector<Rank>(file.word());
    const u64 sets = file.word();
    for (Rank &rank : c.ranks) {
        rank.program.resize(file.word());
        file.take(rank.program.data(), 8 * rank.program.size());
        rank.ends.resize(file.word());
        for (End &end : rank.ends) end = {file.word(), file.word(), file.word()};
        for (u64 i = 0; i < sets; ++i) rank.input.push_back(file.buffer());
        for (u64 i = 0; i < sets; ++i) rank.right.push_back(file.buffer());
        rank.in_place = file.word();
        rank.tag = file.word();
        rank.skew = file.word();
    }
    return c;
}

// A link's memory, made by its receiver, as if `start` pieces had gone over it.
void connect(Case &c) {
    for (Rank &rank : c.ranks) rank.wires.resize(rank.ends.size());
    for (u64 to = 0; to < c.ranks.size(); ++to) {
        Rank &receiver = c.ranks[to];
        for (size_t i = 0; i < receiver.ends.size(); ++i) {
            if (receiver.ends[i].is_send) continue;
            const u64 from = receiver.ends[i].peer, channel = receiver.ends[i].channel;
            Rank &sender = c.ranks[from];
            const Program program = {receiver.program.data()};
            const u32 shares = program.shares(), credits = program.credits();
            for (size_t j = 0; j < sender.ends.size(); ++j) {
                const End &end = sender.ends[j];
                if (!end.is_send || end.peer != to || end.channel != channel) continue;
                Wire wire = {receiver.make<u8>((size_t)shares * credits * program.slot()),
                             receiver.make<Flag>((size_t)shares * credits), sender.make<Flag>(shares), nullptr};
                for (u32 share = 0; share < shares; ++share) {
                    for (u32 back = 1; back <= credits; ++back) {
                        const u32 number = (u32)c.start - back;
                        if (c.start != 0) release(wire.flags + share * credits + (number & (credits - 1)), slot_flag(number + 1, 0, 0));
                    }
                    release(wire.credit + share, (u32)c.start);
                }
                receiver.wires[i] = sender.wires[j] = wire;
                receiver.wires[i].count = receiver.make<u32>(shares);
                sender.wires[j].count = sender.make<u32>(shares);
                for (u32 share = 0; share < shares; ++share) {
                    receiver.wires[i].count[share] = sender.wires[j].count[share] = (u32)c.start;
                }
            }
        }
    }
}

// Every rank has registered its buffers, and reaches those of all others.
void introduce(Case &c) {
    for (Rank &rank : c.ranks) {
        rank.book = rank.team.book = rank.make<Book>(1);
        rank.team.agreed = rank.make<Agreed>(1);
    }
    for (u64 r = 0; r < c.ranks.size(); ++r) {
        Rank &rank = c.ranks[r];
        Offer *offers = rank.make<Offer>(2 * RANKS);
        for (Rank &other : c.ranks) other.team.offers[r] = offers;
        // The one buffer, and then the other, which may be the same.
        const u8 *buffers[2] = {rank.from, rank.into};
        for (u32 place = 0; place < 2; ++place) {
            const u64 number = (1 + r) * REGISTERED + place, at = (u64)buffers[place];
            release(&rank.book->own[place].from, at);
            release(&rank.book->own[place].to, at + rank.right[0].size());
            release(&rank.book->own[place].number, number);
            for (Rank &other : c.ranks) {
                release(&other.book->reached[r][place].at, at);
                release(&other.book->reached[r][place].number, number);
            }
        }
    }
}

void assemble(Case &c) {
    const u64 n = c.ranks.size();
    for (u64 r = 0; r < n; ++r) {
        Rank &rank = c.ranks[r];
        // In place only where both are one block.
        u8 *input = rank.make<u8>(rank.input[0].size() + 64) + c.misaligned;
        rank.from = input;
        rank.into = rank.in_place ? input : rank.make<u8>(rank.right[0].size() + 64) + c.misaligned;
        Team &team = rank.team;
        team.rank = (u32)r;
        team.ranks = (u32)n;
        team.room = team.packet_room = c.room;
        team.epochs = rank.make<u32>(BLOCKS);
        for (u32 i = 0; i < BLOCKS; ++i) team.epochs[i] = (u32)c.start;
        rank.reports = rank.make<Report>(c.blocks);
    }
    if (c.what != INTERPRET) {
        for (u64 r = 0; r < n; ++r) {
            Rank &rank = c.ranks[r];
            Flag *flags = rank.make<Flag>(MOMENTS * 2 * BLOCKS * RANKS);
            u8 *stage = rank.make<u8>(2 * n * c.room);
            Packet *packets = rank.make<Packet>(2 * RANKS * (c.room / 8 + 1));
            for (Rank &other : c.ranks) {
                other.team.flags[r] = flags;
                other.team.stage[r] = stage;
                other.team.packets[r] = packets;
                if (c.agrees) continue;
                other.team.input[r] = rank.from;
                other.team.output[r] = rank.into;
            }
        }
    }
    if (c.what == MULTICAST) {
        // Memory of nobody, at whose address there is nothing to be found.
        const size_t bytes = 2 * n * c.room;
        multicast_memory.at = c.ranks[0].make<u8>(bytes);
        multicast_memory.bytes = bytes;
        multicast_memory.memories.clear();
        for (Rank &rank : c.ranks) {
            u8 *own = rank.make<u8>(bytes);
            multicast_memory.memories.push_back(own);
            rank.team.received = own;
            rank.team.everywhere = const_cast<u8 *>(multicast_memory.at);
        }
    }
    if (c.agrees) introduce(c);
    c.alarm = c.ranks[0].make<Alarm>(1);
    for (Rank &rank : c.ranks) {
        Call &call = rank.launch.own;
        call.program = rank.program.data();
        call.wires = rank.wires.data();
        call.input = rank.from;
        call.output = rank.into;
        if (c.what == INTERPRET) {
            const Program program = {rank.program.data()};
            call.scratch = rank.make<u8>((size_t)program.shares() * program.scratches() * program.slot());
        }
        call.team = &rank.team;
        call.alarm = c.alarm;
        call.reports = rank.reports;
        call.limit = c.limit;
        call.count = c.count;
        call.tag = rank.tag;
        call.when = c.agrees ? &rank.team.agreed->verdict : nullptr;
        call.wanted = MAPPED;
        call.rule = {low(c.rule[0]), high(c.rule[0]), c.rule[1], c.rule[2], c.rule[3], c.rule[4]};
        rank.launch.gang = nullptr;
        rank.launch.blocks = (u32)c.blocks;
        pthread_barrier_init(&rank.stream, nullptr, (unsigned)(c.blocks * c.threads));
        rank.barriers.resize(c.blocks);
        for (u64 b = 0; b < c.blocks; ++b) {
            pthread_barrier_init(&rank.barriers[b], nullptr, (unsigned)c.threads);
            rank.shared.push_back(rank.make<u8>(sizeof(Shared) + sizeof(TeamShared)));
        }
    }
}

struct Place {
    Case *c;
    Rank *rank;
    u64 number;
    u32 block, thread;
};

// A call's buffers, before it.
void fill(Rank &rank, const std::vector<u8> &input) {
    if (!rank.in_place) memset(rank.into, 0xc5, rank.right[0].size());
    if (!input.empty()) memcpy(rank.from, input.data(), input.size());
}

// A thread of a rank: all launches, one after the other, as a stream runs them.
void *run(void *argument) {
    const Place &place = *static_cast<Place *>(argument);
    Case &c = *place.c;
    Rank &rank = *place.rank;
    if (c.absent == place.number + 1) return nullptr;
    const bool leads = place.block == 0 && place.thread == 0;
    emulated = {place.thread, (u32)c.threads, 0, &rank.barriers[place.block], rank.shared[place.block]};
    // A gang's blocks follow each other, rank after rank.
    emulated.block = (c.is_gang ? (u32)(place.number * c.blocks) : 0) + place.block;
    for (u64 round = 0; round < c.rounds; ++round) {
        const std::vector<u8> &right = rank.right[round % rank.right.size()];
        if (leads) fill(rank, rank.input[round % rank.input.size()]);
        pthread_barrier_wait(&rank.stream);
        // Ranks, and blocks of a rank, begin as they like.
        for (u64 turn = 0; turn < (rank.skew * (round + 1 + place.block)) % 61; ++turn) sched_yield();
        if (c.agrees) {
            Launch before = rank.launch;
            before.gang = nullptr;
            before.blocks = 1;
            before.own.count = right.size();
            if (place.block == 0) {
                const u32 block = emulated.block;
                emulated.block = 0;
                play_kernel(AGREE, c.family, before);
                emulated.block = block;
            }
            pthread_barrier_wait(&rank.stream);
        }
        launch(c, rank.launch);
        pthread_barrier_wait(&rank.stream);
        // The divisor is launched behind the call, in the same stream.
        if (c.divides != 0 && place.thread < c.threads) {
            Launch behind = rank.launch;
            behind.gang = nullptr;
            behind.own.count = right.size() / (c.divides & 15);
            behind.own.rule.op = (u32)c.divides;
            behind.own.rule.factor = c.divisor;
            finish(behind);
            pthread_barrier_wait(&rank.stream);
        }
        if (leads && !right.empty()) rank.wrong += memcmp(rank.into, right.data(), right.size()) != 0;
        if (leads) {
            for (u64 b = 0; b < c.blocks; ++b) rank.is_over = rank.is_over || acquire(&rank.reports[b].failure) != 0;
        }
        pthread_barrier_wait(&rank.stream);
        // After a call that failed its links are of no use.
        if (rank.is_over) break;
    }
    return nullptr;
}

void play(u64 index, Case &c) {
    c.agrees = c.what == TWO_SHOT && c.absent == 0 && c.abort_after == 0;
    for (const Rank &rank : c.ranks) c.agrees = c.agrees && rank.tag == c.ranks[0].tag;
    connect(c);
    assemble(c);
    std::vector<Place> places;
    for (u64 r = 0; r < c.ranks.size(); ++r) {
        for (u32 b = 0; b < c.blocks; ++b) {
            for (u32 t = 0; t < c.threads; ++t) places.push_back({&c, &c.ranks[r], r, b, t});
        }
    }
    // Every other case is one launch for all ranks, in which each block finds its rank's call.
    std::vector<Call> gang;
    for (Rank &rank : c.ranks) gang.push_back(rank.launch.own);
    for (Rank &rank : c.ranks) rank.launch.gang = c.is_gang ? gang.data() : nullptr;
    std::vector<pthread_t> threads(places.size());
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 << 10);
    for (size_t i = 0; i < places.size(); ++i) {
        if (pthread_create(&threads[i], &small, run, &places[i]) != 0) {
            perror("thread");
            exit(2);
        }
    }
    if (c.abort_after != 0) {
        const timespec nap = {0, (long)c.abort_after};
        nanosleep(&nap, nullptr);
        ring(c.alarm);
    }
    for (pthread_t thread : threads) pthread_join(thread, nullptr);
    u64 wrong = 0;
    std::string failures;
    for (u64 r = 0; r < c.ranks.size(); ++r) {
        wrong += c.ranks[r].wrong;
        for (u64 b = 0; b < c.blocks; ++b) {
            const Report &report = c.ranks[r].reports[b];
            const u64 failure = acquire(&report.failure);
            if (failure == 0) continue;
            char text[128];
            snprintf(text, sizeof text, " %llu:%llu:%llu:%u:%u:%u:%u", r, b, failure, report.lane, report.move, report.tile,
                     report.operand);
            failures += text;
        }
    }
    // The number of the case, the outputs that were wrong, and the failures: rank, block, failure, lane, move, tile, operand.
    printf("case %llu wrong %llu failures%s\n", index, wrong, failures.c_str());
    fflush(stdout);
}

// A name and a number on each line: limits, sizes, and the bytes before each field.
void print_layout() {
#define SAY(name, number) printf("%s %zu\n", name, (size_t)(number))
#define PLACE(type, field) SAY(#type "." #field, offsetof(type, field))
    SAY("version", PROGRAM_VERSION), SAY("operands", OPERANDS), SAY("scratch", SCRATCHES), SAY("ends", ENDS);
    SAY("blocks", BLOCKS), SAY("ranks", RANKS), SAY("flags", MOMENTS * 2 * BLOCKS * RANKS);
    SAY("wire", sizeof(Wire)), SAY("call", sizeof(Call)), SAY("launch", sizeof(Launch)), SAY("team", sizeof(Team));
    SAY("report", sizeof(Report)), SAY("packet", sizeof(Packet));
    PLACE(Wire, slots), PLACE(Wire, flags), PLACE(Wire, credit), PLACE(Wire, count);
    PLACE(Call, program), PLACE(Call, wires), PLACE(Call, input), PLACE(Call, output), PLACE(Call, scratch), PLACE(Call, team);
    PLACE(Call, alarm), PLACE(Call, reports), PLACE(Call, limit), PLACE(Call, count), PLACE(Call, tag), PLACE(Call, log), PLACE(Call, rule);
    PLACE(Call, when), PLACE(Call, wanted);
    PLACE(Rule, op), PLACE(Rule, scales), PLACE(Rule, factor), PLACE(Rule, turn), PLACE(Rule, shift), PLACE(Rule, flip);
    PLACE(Launch, own), PLACE(Launch, gang), PLACE(Launch, blocks);
    PLACE(Team, rank), PLACE(Team, ranks), PLACE(Team, room), PLACE(Team, packet_room), PLACE(Team, epochs), PLACE(Team, flags);
    PLACE(Team, stage), PLACE(Team, packets), PLACE(Team, input), PLACE(Team, output);
    PLACE(Team, agreed), PLACE(Team, book), PLACE(Team, offers), PLACE(Team, everywhere), PLACE(Team, received);
    SAY("registered", REGISTERED), SAY("offer", sizeof(Offer)), SAY("agreed", sizeof(Agreed)), SAY("book", sizeof(Book));
    PLACE(Book, own), PLACE(Book, reached), PLACE(Book, missing), PLACE(Book, made);
    PLACE(Report, failure), PLACE(Report, lane), PLACE(Report, move), PLACE(Report, tile), PLACE(Report, operand);
    PLACE(Report, expected), PLACE(Report, found);
}

} // namespace

u32 memories_of(const void *at, void **into) {
    const size_t offset = (size_t)((const u8 *)at - multicast_memory.at);
    if (offset + sizeof(Vec) > multicast_memory.bytes || offset % sizeof(Vec) != 0) {
        fprintf(stderr, "a store to all at no address for it\n");
        exit(2);
    }
    u32 count = 0;
    for (u8 *memory : multicast_memory.memories) into[count++] = memory + offset;
    return count;
}

int main(int arguments, char **argument) {
    if (arguments != 2) return 2;
    if (std::string(argument[1]) == "layout") return print_layout(), 0;
    FILE *opened = fopen(argument[1], "rb");
    if (opened == nullptr) return perror(argument[1]), 2;
    File file;
    u8 block[65536];
    for (size_t got; (got = fread(block, 1, sizeof block, opened)) != 0;) file.bytes.insert(file.bytes.end(), block, block + got);
    fclose(opened);
    for (u64 index = 0; file.at < file.bytes.size(); ++index) {
        Case c = read(file);
        c.is_gang = index % 2 == 0;
        play(index, c);
    }
    return 0;
}
