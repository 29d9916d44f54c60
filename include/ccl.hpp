// rdmaccl for C++17: ccl.h with owners that clean up, types that are deduced, and errors that are thrown.
//
// Nothing is hidden: every owner gives its C handle by get(), for what is not here.
#ifndef RDMACCL_CCL_HPP
#define RDMACCL_CCL_HPP

#include <ccl.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace ccl {

// A call that failed: its name, the meaning of the code, and cclGetLastError's words.
class error : public std::runtime_error {
public:
    error(cclResult_t code, const char *call, cclComm_t comm)
        : std::runtime_error(std::string(call) + ": " + cclGetErrorString(code) + ": " + cclGetLastError(comm)),
          code_(code) {}
    cclResult_t code() const noexcept { return code_; }

private:
    cclResult_t code_;
};

inline void check(cclResult_t code, const char *call, cclComm_t comm = nullptr) {
    if (code != cclSuccess) throw error(code, call, comm);
}

// The library's name for T. Half-precision types have no standard name in C++17: use the C calls for them.
template <class T>
constexpr cclDataType_t type_of() {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool> && sizeof(T) <= 8, "no such element type");
    if constexpr (std::is_floating_point_v<T>) return sizeof(T) == 8 ? cclFloat64 : cclFloat32;
    if constexpr (std::is_signed_v<T>) {
        return sizeof(T) == 1 ? cclInt8 : sizeof(T) == 2 ? cclInt16 : sizeof(T) == 4 ? cclInt32 : cclInt64;
    }
    return sizeof(T) == 1 ? cclUint8 : sizeof(T) == 2 ? cclUint16 : sizeof(T) == 4 ? cclUint32 : cclUint64;
}

// An id to be given to all ranks. The process that makes it is where they meet.
inline cclUniqueId unique_id() {
    cclUniqueId id;
    check(cclGetUniqueId(&id), "cclGetUniqueId");
    return id;
}

// Makes the calls of `calls()` as one group: they start together and end together.
template <class Calls>
void group(Calls &&calls) {
    check(cclGroupStart(), "cclGroupStart");
    try {
        std::forward<Calls>(calls)();
    } catch (...) {
        (void)cclGroupEnd();  // the first error is the one to know
        throw;
    }
    check(cclGroupEnd(), "cclGroupEnd");
}

// A host stream: calls on it return at once and are carried out in order.
class stream {
public:
    stream() { check(cclHostStreamCreate(&handle_), "cclHostStreamCreate"); }
    stream(stream &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    stream &operator=(stream other) noexcept { return std::swap(handle_, other.handle_), *this; }
    ~stream() {
        if (handle_) (void)cclHostStreamDestroy(handle_);
    }

    cclStream_t get() const noexcept { return handle_; }
    // Whether all its calls are over.
    bool done() const { return is_done(cclHostStreamQuery(handle_), "cclHostStreamQuery"); }
    // Waits until they are, for so long at most; whether they are.
    bool wait(int milliseconds) const { return is_done(cclHostStreamWait(handle_, milliseconds), "cclHostStreamWait"); }
    void synchronize() const { check(cclHostStreamSynchronize(handle_), "cclHostStreamSynchronize"); }

private:
    static bool is_done(cclResult_t state, const char *call) {
        if (state != cclInProgress) check(state, call);
        return state == cclSuccess;
    }
    cclStream_t handle_ = nullptr;
};

// Zeroed elements in memory that the other processes of this host can map.
template <class T>
class mem {
public:
    explicit mem(std::size_t count) : count_(count) {
        static_assert(std::is_trivially_copyable_v<T>, "elements are bytes to the library");
        if (count > static_cast<std::size_t>(-1) / sizeof(T)) throw std::length_error("ccl::mem");
        void *at = nullptr;
        check(cclMemAlloc(&at, count * sizeof(T)), "cclMemAlloc");
        data_ = static_cast<T *>(at);
    }
    mem(mem &&other) noexcept : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
    mem &operator=(mem other) noexcept {
        return std::swap(data_, other.data_), std::swap(count_, other.count_), *this;
    }
    ~mem() { (void)cclMemFree(data_); }

    T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return count_; }
    T *begin() const noexcept { return data_; }
    T *end() const noexcept { return data_ + count_; }
    T &operator[](std::size_t i) const noexcept { return data_[i]; }

private:
    T *data_ = nullptr;
    std::size_t count_ = 0;
};

// One rank of a communicator. Its end leaves the communicator, which all ranks must do. Construct and split outside of
// groups, whose end would write the handle after the fact.
class communicator {
public:
    communicator(int nranks, const cclUniqueId &id, int rank, cclConfig_t *config = nullptr) {
        cclResult_t code = cclCommInitRankConfig(&handle_, nranks, id, rank, config);
        if (code != cclInProgress) check(code, "cclCommInitRankConfig");
    }
    explicit communicator(cclComm_t handle) noexcept : handle_(handle) {}  // takes it over
    communicator(communicator &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    communicator &operator=(communicator other) noexcept { return std::swap(handle_, other.handle_), *this; }
    ~communicator() {
        if (handle_) (void)cclCommDestroy(handle_);
    }

    // All ranks of a communicator, in this process.
    static std::vector<communicator> all(int nranks) {
        std::vector<cclComm_t> handles(nranks < 0 ? 0 : static_cast<std::size_t>(nranks));
        check(cclCommInitAll(handles.data(), nranks, nullptr), "cclCommInitAll");
        return std::vector<communicator>(handles.begin(), handles.end());
    }

    cclComm_t get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    int size() const { return number(cclCommCount, "cclCommCount"); }
    int rank() const { return number(cclCommUserRank, "cclCommUserRank"); }
    // Empty for a rank whose colour is CCL_SPLIT_NOCOLOR.
    communicator split(int color, int key, cclConfig_t *config = nullptr) const {
        cclComm_t part = nullptr;
        did(cclCommSplit(handle_, color, key, &part, config), "cclCommSplit");
        return communicator(part);
    }
    // Stops what runs, here and at the peers; may come from any thread. All later calls fail.
    void abort() const { check(cclCommAbort(handle_), "cclCommAbort"); }

    template <class T>
    void all_reduce(const T *send, T *recv, std::size_t count, cclRedOp_t op = cclSum, cclStream_t on = nullptr) const {
        did(cclAllReduce(send, recv, count, type_of<T>(), op, handle_, on), "cclAllReduce");
    }
    template <class T>
    void reduce(const T *send, T *recv, std::size_t count, cclRedOp_t op, int root, cclStream_t on = nullptr) const {
        did(cclReduce(send, recv, count, type_of<T>(), op, root, handle_, on), "cclReduce");
    }
    template <class T>
    void broadcast(const T *send, T *recv, std::size_t count, int root, cclStream_t on = nullptr) const {
        did(cclBroadcast(send, recv, count, type_of<T>(), root, handle_, on), "cclBroadcast");
    }
    template <class T>
    void all_gather(const T *send, T *recv, std::size_t count, cclStream_t on = nullptr) const {
        did(cclAllGather(send, recv, count, type_of<T>(), handle_, on), "cclAllGather");
    }
    template <class T>
    void reduce_scatter(const T *send, T *recv, std::size_t count, cclRedOp_t op = cclSum, cclStream_t on = nullptr) const {
        did(cclReduceScatter(send, recv, count, type_of<T>(), op, handle_, on), "cclReduceScatter");
    }
    template <class T>
    void all_to_all(const T *send, T *recv, std::size_t count, cclStream_t on = nullptr) const {
        did(cclAlltoAll(send, recv, count, type_of<T>(), handle_, on), "cclAlltoAll");
    }
    template <class T>
    void send(const T *data, std::size_t count, int peer, cclStream_t on = nullptr) const {
        did(cclSend(data, count, type_of<T>(), peer, handle_, on), "cclSend");
    }
    template <class T>
    void recv(T *data, std::size_t count, int peer, cclStream_t on = nullptr) const {
        did(cclRecv(data, count, type_of<T>(), peer, handle_, on), "cclRecv");
    }
    void barrier(cclStream_t on = nullptr) const { did(cclBarrier(handle_, on), "cclBarrier"); }

private:
    void did(cclResult_t code, const char *call) const { check(code, call, handle_); }
    int number(cclResult_t (*of)(cclComm_t, int *), const char *call) const {
        int value = 0;
        did(of(handle_, &value), call);
        return value;
    }
    cclComm_t handle_ = nullptr;
};

}  // namespace ccl

#endif  // RDMACCL_CCL_HPP
