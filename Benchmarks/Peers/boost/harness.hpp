// The options and the loop of rounds that all programs of these benchmarks share.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

struct Options {
  bool quick = false;
  std::string filter, only;
  int rounds = 5;

  static Options parse(int count, char **arguments) {
    Options options;
    for (int i = 1; i < count; i++) {
      std::string argument = arguments[i];
      auto value = [&]() -> std::string {
        if (++i == count) usage(argument + " needs a value");
        return arguments[i];
      };
      if (argument == "--quick") {
        options.quick = true;
        options.rounds = 1;
      } else if (argument == "--filter") {
        options.filter = value();
      } else if (argument == "--only") {
        options.only = value();
      } else if (argument == "--rounds") {
        options.rounds = std::atoi(value().c_str());
        if (options.rounds < 1) usage("--rounds needs a number from 1 on");
      } else {
        usage("'" + argument + "' is no option");
      }
    }
    return options;
  }

  bool wants(const std::string &row) const {
    return only.empty() ? row.find(filter) != std::string::npos : row == only;
  }

  [[noreturn]] static void usage(const std::string &problem) {
    std::fprintf(stderr, "error: %s. Use: [--quick] [--filter SUBSTRING | --only ROW] [--rounds N]\n", problem.c_str());
    std::exit(2);
  }

  // A row: `body` does exactly as many operations as it is told, and checks that it did.
  template <class Body>
  void row(const char *name, long operations, Body body) const {
    if (!wants(name)) return;
    if (quick && operations >= 40) operations /= 40;
    std::vector<double> taken;
    for (int round = 0; round < rounds; round++) {
      auto start = std::chrono::steady_clock::now();
      body(operations);
      std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
      taken.push_back(time.count() / static_cast<double>(operations));
    }
    std::sort(taken.begin(), taken.end());
    std::printf("boost/%s\t%.1f\t%.1f\n", name, taken.front(), taken[taken.size() / 2]);
    std::fflush(stdout);
  }
};

// Ends the program unless a workload's result is what its operations must have produced.
inline void expect(long found, long wanted, const char *what) {
  if (found == wanted) return;
  std::fprintf(stderr, "error: wrong result: %s: expected %ld, found %ld\n", what, wanted, found);
  std::exit(1);
}
