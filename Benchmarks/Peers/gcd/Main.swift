import Dispatch
import Harness

// The workloads in plain Dispatch, where it has something like them: "gcd/<row> <TAB> best <TAB> median". Built and
// run by Benchmarks/run.

@main
struct GCDPeer {
  static func main() throws {
    let options = Options.parse()
    var suite = Suite(options, owner: "gcd")
    addBlocks(to: &suite)
    addTimers(to: &suite)
    try Runner(options).run(suite, heading: Machine.description)
  }
}

func addBlocks(to suite: inout Suite) {
  // Two blocks of one serial queue that submit themselves again.
  suite.row("yield", 1_000_000) { count in
    let state = State(players: 2)
    @Sendable func turn(_ left: Int) {
      state.count += 1
      if left > 1 { state.queue.async { turn(left - 1) } } else { state.done.leave() }
    }
    for _ in 0..<2 { state.queue.async { turn(count / 2) } }
    state.done.wait()
    expect(state.queue.sync { state.count }, equals: count, "turns taken")
  }

  suite.row("spawn", 1_000_000) { count in
    let state = State(players: 0)
    for _ in 0..<count { state.queue.async { state.count += 1 } }
    expect(state.queue.sync { state.count }, equals: count, "blocks that ran")
  }
}

func addTimers(to suite: inout Suite) {
  suite.row("timers_100k", 100_000, quick: 20_000, clock: .processor) { count in
    let state = State(players: count)
    for index in 0..<count {
      let due = DispatchTime.now() + .milliseconds(1 + index % 1000)
      state.queue.asyncAfter(deadline: due) {
        if DispatchTime.now() < due { state.count += 1 }
        state.done.leave()
      }
    }
    state.done.wait()
    expect(state.queue.sync { state.count }, equals: 0, "timers that fired too early")
  }
}

/// What the blocks of one serial queue share.
private final class State: @unchecked Sendable {
  // Sound because `count` is used on the serial queue alone.
  let queue = DispatchQueue(label: "peer")
  let done = DispatchGroup()
  var count = 0

  init(players: Int) {
    for _ in 0..<players { done.enter() }
  }
}
