// Arithmetic, to the bit as docs/arithmetic.md says and as the host's kernels compute it.
//
// A *family* is a type of elements with the operators that share its kernel: sums and products of each type (`Sums`), the least
// and the largest of all types of one width (`Order`), and bitwise operators (`Bits`). Which of its operators a call wants is in
// the call's `Rule`; so there are 15 kernels where there are 14 types with 9 operators.
#pragma once
#include "dev.h"

// How the contributions of one call are combined.
struct Rule {
    // Sums: 0 adds, 1 multiplies. Bits: 0 and, 1 or, 2 exclusive or.
    u32 op;
    // Whether contributions are multiplied by `factor` where they are read.
    u32 scales;
    // The bits of a value.
    u64 factor;
    // Order: what turns codes into integers of the same order.
    u64 turn, shift, flip;
};

// A float narrower than a single in exponent and mantissa. `TOP` is the largest code of a number, infinity where there is one.
template <u32 MANTISSA, u32 BIAS, u32 TOP, u32 NAN_CODE, u32 SIGN> struct Format {
    static METHOD float decode(u32 code) {
        const u32 shift = 23 - MANTISSA;
        const u32 magnitude = code & ((1u << SIGN) - 1);
        const u32 sign = (code >> SIGN) << 31;
        // A normal number: the same mantissa, the exponent with the other bias.
        const u32 normal = (magnitude << shift) + ((127 - BIAS) << 23);
        // A subnormal one: its mantissa under a one, which is then taken away.
        const u32 one = (128 - BIAS) << 23;
        const u32 subnormal = bits(add(single((magnitude << shift) + one), -single(one)));
        u32 value = magnitude < (1u << MANTISSA) ? subnormal : normal;
        if (TOP % (1u << MANTISSA) == 0 && magnitude == TOP) value = 0x7f800000u;
        if (magnitude > TOP) value = 0x7fc00000u;
        return single(value | sign);
    }
    // The nearest code, ties to even.
    static METHOD u32 encode(float value) {
        const u32 shift = 23 - MANTISSA;
        const u32 magnitude = bits(value) & 0x7fffffffu;
        const u32 sign = bits(value) >> 31 << SIGN;
        // A normal number: rounded as an integer, where a carry goes into the exponent as it should.
        const u32 half = (1u << (shift - 1)) - 1 + (magnitude >> shift & 1);
        const u32 normal = ((magnitude + half) >> shift) - ((127 - BIAS) << MANTISSA);
        // A subnormal one: added to a number whose last place is worth the smallest of ours.
        const u32 place = (127 + 23 - MANTISSA + 1 - BIAS) << 23;
        const u32 subnormal = bits(add(single(magnitude), single(place))) - place;
        u32 finite = magnitude < (128 - BIAS) << 23 ? subnormal : normal;
        if (finite > TOP) finite = TOP;
        return magnitude > 0x7f800000u ? NAN_CODE : finite | sign;
    }
};

// Each type of elements: as it lies in memory (`Element`), and as it is combined (`Value`).
struct Half {
    typedef u16 Element;
    typedef float Value;
#if defined(HALF_INSTRUCTIONS)
    static METHOD float widen(u16 code) { return from_half(code); }
    static METHOD u16 narrow(float value) { return to_half(value); }
#else
    typedef Format<10, 15, 0x7c00, 0x7e00, 15> Code;
    static METHOD float widen(u16 code) { return Code::decode(code); }
    static METHOD u16 narrow(float value) { return (u16)Code::encode(value); }
#endif
};

struct Brain {
    typedef u16 Element;
    typedef float Value;
    static METHOD float widen(u16 code) { return single((u32)code << 16); }
    static METHOD u16 narrow(float value) {
        const u32 code = bits(value);
        const u32 rounded = (code + 0x7fffu + (code >> 16 & 1)) >> 16;
        return (u16)((code & 0x7fffffffu) > 0x7f800000u ? 0xffffu : rounded);
    }
};

template <class Code> struct Byte {
    typedef u8 Element;
    typedef float Value;
    static METHOD float widen(u8 code) { return Code::decode(code); }
    static METHOD u8 narrow(float value) { return (u8)Code::encode(value); }
};
typedef Byte<Format<3, 7, 0x7e, 0x7f, 7> > E4m3;
typedef Byte<Format<2, 15, 0x7c, 0x7f, 7> > E5m2;

struct Single {
    typedef u32 Element;
    typedef float Value;
    static METHOD float widen(u32 code) { return single(code); }
    static METHOD u32 narrow(float value) { return bits(value); }
};

struct Double {
    typedef u64 Element;
    typedef double Value;
    static METHOD double widen(u64 code) { return real(code); }
    static METHOD u64 narrow(double value) { return bits(value); }
};

// Integers wrap, so their signs do not matter. Narrow ones are combined as words, of which the low bits are the result's.
template <class E, class V> struct Integer {
    typedef E Element;
    typedef V Value;
    static METHOD V widen(E code) { return code; }
    static METHOD E narrow(V value) { return (E)value; }
};

METHOD u32 add(u32 a, u32 b) { return a + b; }
METHOD u32 multiply(u32 a, u32 b) { return a * b; }
METHOD u64 add(u64 a, u64 b) { return a + b; }
METHOD u64 multiply(u64 a, u64 b) { return a * b; }
METHOD void from_bits(u64 code, float &value) { value = single((u32)code); }
METHOD void from_bits(u64 code, double &value) { value = real(code); }
METHOD void from_bits(u64 code, u32 &value) { value = (u32)code; }
METHOD void from_bits(u64 code, u64 &value) { value = code; }

// Sums and products.
template <class Number> struct Sums {
    // What is combined at a time where memory is in whole words, and where it is not.
    typedef typename Number::Element Word;
    typedef Word Element;
    typedef typename Number::Value Value;
    static METHOD Value widen(Word code, const Rule &) { return Number::widen(code); }
    static METHOD Word narrow(Value value, const Rule &) { return Number::narrow(value); }
    static METHOD Value combine(Value a, Value b, const Rule &rule) { return rule.op == 0 ? add(a, b) : multiply(a, b); }
    static METHOD Value scale(Value value, const Rule &rule) {
        Value factor;
        from_bits(rule.factor, factor);
        return multiply(value, factor);
    }
};

// The least and the largest. A code becomes a signed integer of the same order: a negative float's is turned round, then all NaN are
// shifted to one end; the sign of an unsigned integer is flipped; and for the largest all bits are, so that it is the least.
template <class Unsigned, class Signed> struct Order {
    typedef Unsigned Word;
    typedef Unsigned Element;
    typedef Signed Value;
    static METHOD Unsigned turned(Unsigned code, const Rule &rule) {
        return code ^ (Unsigned)((Signed)code >> (8 * sizeof(Signed) - 1) & (Signed)rule.turn);
    }
    static METHOD Signed widen(Unsigned code, const Rule &rule) {
        return (Signed)(Unsigned)((Unsigned)(turned(code, rule) + (Unsigned)rule.shift) ^ (Unsigned)rule.flip);
    }
    static METHOD Unsigned narrow(Signed value, const Rule &rule) {
        return turned((Unsigned)(((Unsigned)value ^ (Unsigned)rule.flip) - (Unsigned)rule.shift), rule);
    }
    static METHOD Signed combine(Signed a, Signed b, const Rule &) { return a < b ? a : b; }
    static METHOD Signed scale(Signed value, const Rule &) { return value; }
};

// Bit by bit, whatever the elements are.
struct Bits {
    typedef u32 Word;
    typedef u8 Element;
    typedef u32 Value;
    template <class T> static METHOD u32 widen(T code, const Rule &) { return code; }
    static METHOD u32 narrow(u32 value, const Rule &) { return value; }
    static METHOD u32 combine(u32 a, u32 b, const Rule &rule) { return rule.op == 0 ? a & b : rule.op == 1 ? a | b : a ^ b; }
    static METHOD u32 scale(u32 value, const Rule &) { return value; }
};

typedef Sums<Integer<u8, u32> > SumsI8;
typedef Sums<Integer<u16, u32> > SumsI16;
typedef Sums<Integer<u32, u32> > SumsI32;
typedef Sums<Integer<u64, u64> > SumsI64;
typedef Sums<Half> SumsF16;
typedef Sums<Brain> SumsBF16;
typedef Sums<Single> SumsF32;
typedef Sums<Double> SumsF64;
typedef Sums<E4m3> SumsE4M3;
typedef Sums<E5m2> SumsE5M2;
typedef Order<u8, i8> Order8;
typedef Order<u16, i16> Order16;
typedef Order<u32, i32> Order32;
typedef Order<u64, i64> Order64;
