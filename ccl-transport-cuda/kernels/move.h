// A move: combines its sources, in their order, and writes the result into every sink. The block's threads share its bytes.
#pragma once
#include "number.h"

// Operands of a move at most.
#define OPERANDS 72u

// The move at hand, in the block's memory: written by a thread per operand, read by all behind a barrier.
struct Operands {
    u8 *at[OPERANDS];
    u32 len[OPERANDS];
    // Whether it is a contribution that the call's rule multiplies.
    u8 scaled[OPERANDS];
};

template <class Word> struct Words {
    enum { COUNT = sizeof(Vec) / sizeof(Word) };
};

// The words of a vector, one after the other. The compiler sees through the shifts.
template <class Word> METHOD Word word_of(const Vec &v, u32 index) {
    const u32 bytes = index * sizeof(Word);
    return (Word)(v.word[bytes / 4] >> (bytes % 4 * 8));
}
template <> METHOD u64 word_of<u64>(const Vec &v, u32 index) {
    return (u64)v.word[2 * index] | (u64)v.word[2 * index + 1] << 32;
}
template <class Word> METHOD void put_word(Vec &v, u32 index, Word word) {
    const u32 bytes = index * sizeof(Word);
    v.word[bytes / 4] |= (u32)word << (bytes % 4 * 8);
}
template <> METHOD void put_word<u64>(Vec &v, u32 index, u64 word) {
    v.word[2 * index] = (u32)word;
    v.word[2 * index + 1] = (u32)(word >> 32);
}

// Values of a vector under way.
template <class F> struct Values {
    enum { COUNT = Words<typename F::Word>::COUNT };
    typename F::Value value[COUNT];

    METHOD void take(const Vec &v, bool is_first, bool scaled, const Rule &rule) {
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            typename F::Value next = F::widen(word_of<typename F::Word>(v, i), rule);
            if (scaled) next = F::scale(next, rule);
            value[i] = is_first ? next : F::combine(value[i], next, rule);
        }
    }
    METHOD Vec narrow(const Rule &rule) const {
        Vec v = {{0, 0, 0, 0}};
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) put_word<typename F::Word>(v, i, F::narrow(value[i], rule));
        return v;
    }
};

// Of how many sources a thread loads at a time: of two where values are floats, for which there are registers enough.
template <class Value> struct Sources {
    enum { AT_A_TIME = 1 };
};
template <> struct Sources<float> {
    enum { AT_A_TIME = 2 };
};

// The vectors of a move from number `first` on, `U` at a time to a thread, as far as whole rounds go. Returns the number after them.
template <class F, u32 U, u32 SOURCES>
METHOD u32 reduce_vectors(const Operands &operands, u32 sources, u32 sinks, u32 first, u32 vectors, const Rule &rule) {
    const u32 round = U * threads();
    for (; vectors - first >= round; first += round) {
        const u32 mine = first + thread();
        Values<F> values[U] = {};
        // Of two sources twice as much is on its way, and values are no more.
#pragma unroll 1
        for (u32 s = 0; s < sources; s += SOURCES) {
            const bool are_two = SOURCES == 2 && s + 1 < sources;
            const Vec *from = (const Vec *)operands.at[s] + mine, *next = (const Vec *)operands.at[are_two ? s + 1 : s] + mine;
            Vec v[U], w[U];
#pragma unroll
            for (u32 u = 0; u < U; ++u) v[u] = load(from + u * threads());
            if (are_two) {
#pragma unroll
                for (u32 u = 0; u < U; ++u) w[u] = load(next + u * threads());
            }
            const bool scaled = operands.scaled[s];
#pragma unroll
            for (u32 u = 0; u < U; ++u) values[u].take(v[u], s == 0, scaled, rule);
            if (are_two) {
                const bool next_scaled = operands.scaled[s + 1];
#pragma unroll
                for (u32 u = 0; u < U; ++u) values[u].take(w[u], false, next_scaled, rule);
            }
        }
        Vec v[U];
#pragma unroll
        for (u32 u = 0; u < U; ++u) v[u] = values[u].narrow(rule);
#pragma unroll 1
        for (u32 s = sources; s < sources + sinks; ++s) {
            Vec *into = (Vec *)operands.at[s] + mine;
#pragma unroll
            for (u32 u = 0; u < U; ++u) store(into + u * threads(), v[u]);
        }
    }
    return first;
}

// Elements from byte `at` to `len`, wherever they lie.
template <class F>
METHOD void reduce_elements(const Operands &operands, u32 sources, u32 sinks, u32 at, u32 len, const Rule &rule) {
    typedef typename F::Element Element;
#pragma unroll 1
    for (u32 i = at / sizeof(Element) + thread(); i < len / sizeof(Element); i += threads()) {
        typename F::Value value = typename F::Value();
#pragma unroll 1
        for (u32 s = 0; s < sources; ++s) {
            typename F::Value next = F::widen(((const Element *)operands.at[s])[i], rule);
            if (operands.scaled[s]) next = F::scale(next, rule);
            value = s == 0 ? next : F::combine(value, next, rule);
        }
        const Element result = (Element)F::narrow(value, rule);
#pragma unroll 1
        for (u32 s = sources; s < sources + sinks; ++s) ((Element *)operands.at[s])[i] = result;
    }
}

// Copies vectors from number `first` on, `U` at a time to a thread, as far as whole rounds go. Returns the number after them.
template <u32 U> METHOD u32 copy_vectors(const Operands &operands, u32 sinks, u32 first, u32 vectors) {
    const u32 round = U * threads();
    for (; vectors - first >= round; first += round) {
        const u32 mine = first + thread();
        const Vec *from = (const Vec *)operands.at[0] + mine;
        Vec v[U];
#pragma unroll
        for (u32 u = 0; u < U; ++u) v[u] = load(from + u * threads());
#pragma unroll 1
        for (u32 s = 1; s <= sinks; ++s) {
            Vec *into = (Vec *)operands.at[s] + mine;
#pragma unroll
            for (u32 u = 0; u < U; ++u) store(into + u * threads(), v[u]);
        }
    }
    return first;
}

// Copies from byte `at` to `len`, a word to a thread.
template <class Word> METHOD void copy_words(const Operands &operands, u32 sinks, u32 at, u32 len) {
#pragma unroll 1
    for (u32 i = at / sizeof(Word) + thread(); i < len / sizeof(Word); i += threads()) {
        const Word word = ((const Word *)operands.at[0])[i];
#pragma unroll 1
        for (u32 s = 1; s <= sinks; ++s) ((Word *)operands.at[s])[i] = word;
    }
}

// The last vectors, fewer than a round of `reduce_vectors` has: one to a thread, of several sources at a time, so that a short move does
// not wait for memory once per source.
template <class F, u32 SOURCES>
METHOD void reduce_last(const Operands &operands, u32 sources, u32 sinks, u32 first, u32 vectors, const Rule &rule) {
#pragma unroll 1
    for (u32 mine = first + thread(); mine < vectors; mine += threads()) {
        Values<F> value = {};
#pragma unroll 1
        for (u32 from = 0; from < sources; from += SOURCES) {
            Vec v[SOURCES];
#pragma unroll
            for (u32 s = 0; s < SOURCES; ++s) {
                if (from + s < sources) v[s] = load((const Vec *)operands.at[from + s] + mine);
            }
#pragma unroll
            for (u32 s = 0; s < SOURCES; ++s) {
                if (from + s < sources) value.take(v[s], from + s == 0, operands.scaled[from + s], rule);
            }
        }
        const Vec v = value.narrow(rule);
#pragma unroll 1
        for (u32 s = sources; s < sources + sinks; ++s) store((Vec *)operands.at[s] + mine, v);
    }
}

// All `len` bytes of a move.
template <class F> METHOD void make_move(const Operands &operands, u32 sources, u32 sinks, u32 len, const Rule &rule) {
    u64 places = 0;
#pragma unroll 1
    for (u32 i = 0; i < sources + sinks; ++i) places |= (u64)operands.at[i];
    const u32 vectors = places % sizeof(Vec) == 0 ? len / sizeof(Vec) : 0;
    if (sources == 1 && !operands.scaled[0]) {
        const u32 rounds = copy_vectors<8>(operands, sinks, 0, vectors);
        copy_words<Vec>(operands, sinks, rounds * sizeof(Vec), vectors * sizeof(Vec));
        const u32 at = vectors * sizeof(Vec);
        if ((places | len) % 4 == 0) {
            copy_words<u32>(operands, sinks, at, len);
        } else {
            copy_words<u8>(operands, sinks, at, len);
        }
        return;
    }
    // As many at a time as keep memory busy and leave registers for all values. A vector of bytes is 16 of them.
    const bool is_wide = Values<F>::COUNT > 8;
    const u32 done = is_wide ? 0 : reduce_vectors<F, 4, Sources<typename F::Value>::AT_A_TIME>(operands, sources, sinks, 0, vectors, rule);
    reduce_last<F, is_wide ? 1 : 4>(operands, sources, sinks, done, vectors, rule);
    reduce_elements<F>(operands, sources, sinks, vectors * sizeof(Vec), len, rule);
}
