import Coroutine
import CoroutineTesting
import Dispatch
import Synchronization
import Testing

/// Exhaustive search over programs that share only what they wait for.
@Suite(.timeLimit(.minutes(10)))
struct SharingTests {
  /// Explores three coroutines that send so many values each, and returns the runs, and the orders that were seen.
  private func orders(
    _ sharing: Exploration.Sharing,
    channels: [Int],
    values: [Int] = [2, 2, 2],
    preemptions: Int
  ) -> (runs: Int, seen: Set<[Int]>) {
    let seen = Mutex<Set<[Int]>>([])
    let found = explore(.exhaustive(preemptions: preemptions), sharing: sharing) {
      let all = channels.map { _ in Channel<Int>(.unbounded) }
      let jobs = channels.enumerated().map { index, channel in
        co_launch { for number in 0..<values[index] { try all[channel].send(index * 10 + number) } }
      }
      for job in jobs { try job.join() }
      var order: [Int] = []
      for channel in all {
        channel.close()
        while case .received(let value) = channel.tryReceive() { order.append(value) }
      }
      seen.withLock { _ = $0.insert(order) }
    }
    #expect(found.isComplete)
    #expect(found.failure == nil)
    return (found.runs, seen.withLock { $0 })
  }

  @Test(.enabled(if: !isSanitized)) func `schedules of coroutines that touch distinct objects are not repeated`() {
    let all = orders(.memory, channels: [0, 1, 2], values: [2, 2, 1], preemptions: .max)
    let reduced = orders(.waits, channels: [0, 1, 2], values: [2, 2, 1], preemptions: .max)
    #expect(reduced.runs * 20 <= all.runs, "\(reduced.runs) of \(all.runs)")
    #expect(reduced.seen == all.seen)
  }

  @Test(arguments: isSanitized ? [1] : [1, 2, 3, .max]) func `no outcome is left out`(preemptions: Int) {
    for channels in [[0, 0, 0], [0, 0, 1]] {
      let values = [2, 2, preemptions == .max ? 1 : 2]
      let all = orders(.memory, channels: channels, values: values, preemptions: preemptions)
      let reduced = orders(.waits, channels: channels, values: values, preemptions: preemptions)
      #expect(reduced.seen == all.seen)
      #expect(reduced.runs <= all.runs)
      if preemptions == .max, channels == [0, 0, 0] { #expect(all.seen.count == 30) }
    }
  }

  @Test func `a point makes a step depend on every other`() {
    let found = explore(.exhaustive(), sharing: .waits, lostUpdate)
    #expect(found.failure?.error is Lost)
  }

  @Test func `Tasks may share what the world is not told of, so their order is explored`() {
    let seen = Mutex<Set<String>>([])
    let found = explore(.exhaustive(), sharing: .waits) {
      let word = Cell("")
      let jobs = ["a", "b", "c"].map { letter in co_launch { try co_await { word.value += letter } } }
      for job in jobs { try job.join() }
      seen.withLock { _ = $0.insert(word.value) }
    }
    #expect(found.isComplete)
    #expect(seen.withLock { $0 } == ["abc", "acb", "bac", "bca", "cab", "cba"])
  }

  @Test func `a cancellation depends on every other step`() {
    let seen = Mutex<Set<Bool>>([])
    let found = explore(.exhaustive(), sharing: .waits) {
      let (one, other) = (Channel<Int>(.unbounded), Channel<Int>(.unbounded))
      let victim = co_launch {
        try one.send(1)
        return true
      }
      let canceller = co_launch {
        try other.send(1)
        victim.cancel()
      }
      let hasSent = (try? victim.join()) ?? false
      seen.withLock { _ = $0.insert(hasSent) }
      try canceller.join()
    }
    #expect(found.isComplete)
    #expect(seen.withLock { $0 } == [true, false])
  }
  @Test(.enabled(if: !isSanitized)) func `a stop depends on each look at it, of its scope and of the scopes inside`() {
    func outcomes(_ sharing: Exploration.Sharing) -> Set<[Bool]> {
      let seen = Mutex<Set<[Bool]>>([])
      let found = explore(.exhaustive(), sharing: sharing) {
        let looks = Cell<[Bool]>([])
        try co_scope { outer in
          let looking = outer.launch {
            try co_scope { inner in
              inner.launch {
                let signal = co_stopping
                for _ in 0..<2 {
                  looks.value.append(signal.isTold)
                  try co_yield()
                  looks.value.append(co_isStopping)
                  try co_yield()
                }
              }
            }
          }
          outer.launch {
            for seconds in [100, 200] {
              try co_yield()
              outer.stop(within: .seconds(seconds))
            }
          }
          try looking.join()
        }
        seen.withLock { _ = $0.insert(looks.value) }
      }
      #expect(found.isComplete)
      return seen.withLock { $0 }
    }
    let all = outcomes(.memory)
    #expect(all.count == 5)
    #expect(outcomes(.waits) == all)
  }
  @Test func `a launch on a queue is a use of the queue, whose order it decides`() {
    let seen = Mutex<Set<String>>([])
    let found = explore(.exhaustive(preemptions: .max), sharing: .waits) {
      let queue = DispatchQueue(label: "shared")
      let order = Cell("")
      let jobs = ["ab", "cd"].map { letters in
        co_launch {
          let own = Channel<Int>(.unbounded)
          for letter in letters {
            try own.send(1)
            co_launch(on: queue) { order.value.append(letter) }
          }
        }
      }
      for job in jobs { try job.join() }
      try World.current?.settle()
      seen.withLock { _ = $0.insert(order.value) }
    }
    #expect(found.isComplete)
    #expect(seen.withLock { $0 } == ["abcd", "acbd", "acdb", "cabd", "cadb", "cdab"])
  }
}
