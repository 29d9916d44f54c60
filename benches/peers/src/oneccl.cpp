// oneCCL on host memory over Intel MPI, whose launcher starts the ranks.
#include "core.h"
#include <mpi.h>
#include <oneapi/ccl.hpp>
#include <string>
#include <vector>

namespace {

struct State {
    ccl::communicator comm;
    ccl::allreduce_attr all_reduce = ccl::create_operation_attr<ccl::allreduce_attr>();
    ccl::allgatherv_attr all_gather = ccl::create_operation_attr<ccl::allgatherv_attr>();
    ccl::reduce_scatter_attr reduce_scatter = ccl::create_operation_attr<ccl::reduce_scatter_attr>();
    ccl::broadcast_attr broadcast = ccl::create_operation_attr<ccl::broadcast_attr>();
    ccl::alltoall_attr all_to_all = ccl::create_operation_attr<ccl::alltoall_attr>();
    ccl::reduce_attr reduce = ccl::create_operation_attr<ccl::reduce_attr>();
    std::vector<size_t> counts;
};

ccl::datatype datatype(enum type type) {
    const ccl::datatype all[TYPES] = {ccl::datatype::float32, ccl::datatype::float16, ccl::datatype::bfloat16};
    return all[type];
}

template <typename Attributes> void cached(Attributes &attributes, const std::string &name) {
    attributes.template set<ccl::operation_attr_id::match_id>(ccl::string_class(name.c_str()));
    attributes.template set<ccl::operation_attr_id::to_cache>(true);
}

// The library keeps the schedule of a call that has a name. It has no gather and no scatter; its sends
// and receives are not measured.
bool prepare(void *context, const struct call *call) {
    if (call->collective > REDUCE) return false;
    State &state = *static_cast<State *>(context);
    std::string name;
    for (size_t part : {size_t(call->collective), size_t(call->type), call->count, size_t(call->in_place)})
        name += std::to_string(part) + "_";
    cached(state.all_reduce, name);
    cached(state.all_gather, name);
    cached(state.reduce_scatter, name);
    cached(state.broadcast, name);
    cached(state.all_to_all, name);
    cached(state.reduce, name);
    state.counts.assign(size_t(state.comm.size()), call->count);
    return true;
}

void make(void *context, const struct call *call) {
    State &state = *static_cast<State *>(context);
    const auto type = datatype(call->type);
    const auto sum = ccl::reduction::sum;
    const void *send = call->send;
    void *receive = call->receive;
    const size_t count = call->count;
    switch (call->collective) {
    case ALL_REDUCE: ccl::allreduce(send, receive, count, type, sum, state.comm, state.all_reduce).wait(); break;
    case ALL_GATHER:
        ccl::allgatherv(send, count, receive, state.counts, type, state.comm, state.all_gather).wait();
        break;
    case REDUCE_SCATTER:
        ccl::reduce_scatter(send, receive, count, type, sum, state.comm, state.reduce_scatter).wait();
        break;
    case BROADCAST: ccl::broadcast(receive, count, type, 0, state.comm, state.broadcast).wait(); break;
    case ALL_TO_ALL: ccl::alltoall(send, receive, count, type, state.comm, state.all_to_all).wait(); break;
    case REDUCE: ccl::reduce(send, receive, count, type, sum, 0, state.comm, state.reduce).wait(); break;
    case GATHER: case SCATTER: case SEND_RECV: case COLLECTIVES: break;
    }
}

void barrier(void *context) { ccl::barrier(static_cast<State *>(context)->comm).wait(); }

void largest(void *context, double *values, int count) {
    ccl::communicator &comm = static_cast<State *>(context)->comm;
    ccl::allreduce(values, values, size_t(count), ccl::datatype::float64, ccl::reduction::max, comm).wait();
}

} // namespace

int main(int argc, char **argv) {
    int rank, ranks, level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    ccl::init();
    ccl::kvs::address_type address;
    ccl::shared_ptr_class<ccl::kvs> store;
    if (rank == 0) {
        store = ccl::create_main_kvs();
        address = store->get_address();
    }
    MPI_Bcast(address.data(), int(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank) store = ccl::create_kvs(address);
    {
        State state{ccl::create_communicator(ranks, rank, store)};
        const auto version = ccl::get_library_version();
        const std::string name = std::string("oneCCL ") + (version.full ? version.full : "");
        struct library library = {};
        library.version = name.c_str();
        library.rank = rank;
        library.ranks = ranks;
        library.context = &state;
        library.prepare = prepare;
        library.make = make;
        library.barrier = barrier;
        library.largest = largest;
        measure(&library, argc, argv);
        barrier(&state);
    }
    MPI_Finalize();
    return 0;
}
