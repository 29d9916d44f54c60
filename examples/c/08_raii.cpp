// 08: the same in C++17, with include/ccl.hpp: owners that clean up, errors that are thrown.
//
//   c++ -std=c++17 08_raii.cpp $(pkg-config --cflags --libs rdmaccl) -o raii && ./raii
#include <ccl.hpp>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <vector>

int main() try {
    constexpr int ranks = 4;
    constexpr std::size_t count = 1000;
    std::vector<ccl::communicator> comms = ccl::communicator::all(ranks);

    // Memory that other processes of this host can map; the element type decides the library's.
    std::vector<ccl::mem<float>> buffers;
    for (const auto &comm : comms) {
        buffers.emplace_back(count);
        std::fill(buffers.back().begin(), buffers.back().end(), static_cast<float>(comm.rank() + 1));
    }

    // One thread drives all ranks: the calls start and end together.
    ccl::group([&] {
        for (int r = 0; r < ranks; r++) comms[r].all_reduce(buffers[r].data(), buffers[r].data(), count);
    });

    // On streams the calls go on by themselves.
    std::vector<ccl::stream> streams(ranks);
    for (int r = 0; r < ranks; r++)
        comms[r].all_reduce(buffers[r].data(), buffers[r].data(), count, cclMax, streams[r].get());
    for (const auto &stream : streams) stream.synchronize();

    for (const auto &buffer : buffers)
        if (std::any_of(buffer.begin(), buffer.end(), [](float value) { return value != 10.0f; })) return EXIT_FAILURE;

    try {
        comms[0].broadcast(buffers[0].data(), buffers[0].data(), count, ranks);
        return EXIT_FAILURE;  // there is no such root
    } catch (const ccl::error &error) {
        std::cout << "refused, as it should be: " << error.what() << '\n';
    }
    std::cout << ranks << " ranks: every element is 10\n";
    return EXIT_SUCCESS;
} catch (const std::exception &error) {
    std::cerr << error.what() << '\n';
    return EXIT_FAILURE;
}
