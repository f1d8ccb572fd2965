import CProbe
import Coroutine
import CoroutineTesting
import Harness

// What CoroutineTesting's worlds cost. Prints one line of a Markdown table for each bar of docs/performance/worlds.md;
// the program fails if a count is wrong, and not if a time is missed. Times are the processor's: a world runs on one
// thread and never waits for anything real, so on an idle machine they are the time that passes.

@main
struct Worlds {
  static func main() throws {
    let arguments = CommandLine.arguments.dropFirst()
    if arguments.first == "--calls" {
      // The names; with a name and a number, so many calls.
      guard arguments.count == 3 else { return print(Calls.all.map(\.name).joined(separator: "\n")) }
      guard let count = Int(arguments[3]), let call = Calls.all.first(where: { $0.name == arguments[2] }) else {
        fail("worlds --calls NAME COUNT")
      }
      return call.run(count)
    }
    print("Processor: \(Machine.description)\n")
    for warning in Machine.warnings { print("Careful: \(warning)\n") }
    let trip = least(5) { _ = cprobe_raw_round_trips(1_000_000, CPROBE_RECONCILED) } / 1_000_000
    print("| what | measured | bar | holds | in raw round trips (\(shown(trip)) ns) |\n|---|---|---|---|---|")

    func row(_ what: String, _ measured: String, _ bar: String, _ holds: Bool, _ cost: String = "") {
      print("| \(what) | \(measured) | \(bar) | \(holds ? "yes" : "no") | \(cost) |")
    }

    let empty = try least(5) { for _ in 0..<10_000 { try World().run {} } } / 10_000
    row("a world, created and run", "\(shown(empty / 1e3)) µs", "10 µs", empty <= 10e3, shown(empty / trip))

    var all = 0
    let search = least(1) { all = Schedules.count(.memory, Schedules.atPoints) }
    expect(all, equals: Schedules.all, "schedules of three coroutines with five steps")
    let each = search / Double(all)
    row(
      "\(all) schedules, three coroutines of five steps",
      "\(shown(search / 1e9)) s, \(shown(each / 1e3)) µs for each schedule",
      "10 s",
      search <= 10e9,
      "\(shown(each / trip)) for each schedule, \(shown(each / trip / 15)) for each step"
    )

    var reduced = 0
    let part = least(1) { reduced = Schedules.count(.waits, Schedules.atChannels) }
    row(
      "the same with sleep sets, distinct objects",
      "\(reduced) schedules, 1/\(all / reduced), in \(shown(part / 1e6)) ms",
      "1/20",
      reduced * 20 <= all,
      "\(shown(part / Double(reduced) / trip)) for each schedule"
    )

    let timers = 100_000
    let hour = try least(5) { try Bodies.hour(timers) }
    row(
      "an hour of the world's time with \(timers) timers",
      "\(shown(hour / 1e9)) s",
      "1 s",
      hour <= 1e9,
      "\(shown(hour / Double(timers) / trip)) for each timer and its coroutine"
    )

    for (name, strategy) in [
      ("random", Exploration.Strategy.random()), ("priorities", .priorities()), ("exhaustive", .exhaustive()),
    ] {
      var switches = 0
      let found = least(1) {
        guard let failure = explore(strategy, Programs.race).failure else { fail("\(name) has found no race") }
        switches = failure.switches
      }
      row(
        "a race of two coroutines, found by `\(name)` and shrunk",
        "\(switches) switch\(switches == 1 ? "" : "es"), in \(shown(found / 1e6)) ms",
        "3 switches",
        switches <= 3
      )
    }

    var equal = 0
    let twice = try least(1) {
      for seed in 0..<1_000 as Range<UInt64> {
        let (once, again) = try (Programs.fingerprint(seed), Programs.fingerprint(seed))
        if once == again { equal += 1 }
      }
    }
    row(
      "seeds of which two runs have equal hashes",
      "\(equal) of 1000, in \(shown(twice / 1e6)) ms",
      "1000",
      equal == 1000
    )
  }

  /// Returns the least time of so many rounds, in ns.
  private static func least(_ rounds: Int, _ body: () throws -> Void) rethrows -> Double {
    var least = Double.infinity
    for _ in 0..<rounds {
      let start = Clock.processor.now
      try body()
      least = min(least, Double(Clock.processor.now - start))
    }
    return least
  }

  private static func shown(_ number: Double) -> String {
    number < 100 ? "\((number * 10).rounded() / 10)" : "\(Int(number.rounded()))"
  }
}
