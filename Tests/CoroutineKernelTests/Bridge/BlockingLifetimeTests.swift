import CoroutineTesting
import Dispatch
import Testing

@testable import Coroutine

@Suite("The captures and results of blocking code", .timeLimit(.minutes(10)))
struct BlockingLifetimeTests {
  @Test func `the body is released before the coroutine continues`() async throws {
    let trace = Trace()
    try await onCoroutine {
      try co_blocking { [captured = Tracked("capture", trace)] in captured.use() }
      trace("goes on")
    }
    #expect(trace.all == ["released capture", "goes on"])
  }

  @Test func `the result of a cancelled wait is released when the body ends`() async throws {
    let (end, started, released) = (DispatchSemaphore(value: 0), Arrivals(), Arrivals())
    let job = co_launch {
      _ = try co_blocking {
        started.arrive()
        end.wait()
        return Tracked { released.arrive() }
      }
    }
    try await started.wait(for: 1)
    job.cancel(Oops("reason"))
    // The body still blocks: there was no signal yet.
    #expect(await asyncOutcome { try await job.value } == "Oops(reason)")
    #expect(released.count == 0)
    end.signal()
    try await released.wait(for: 1)
  }

  @Test func `a body may capture values that are not Sendable`() async throws {
    final class Count {
      var value = 0
    }
    let seen = try await onCoroutine {
      let count = Count()
      count.value = 41
      return try co_blocking {
        count.value += 1
        return count.value
      }
    }
    #expect(seen == 42)
  }

  @Test func `the caller's local bindings hold in the body, and the body's own do not leave it`() async throws {
    let local = CoroutineLocal(default: "none")
    let seen = try await onCoroutine {
      var seen = try local.withValue("caller") {
        let inside = try co_blocking { [local.value, local.withValue("body") { local.value }, local.value] }
        let inherited = try co_blocking { co_launch { local.value } }.join()
        return inside + [inherited, local.value]
      }
      for _ in 0..<8 { seen.append(try co_blocking { local.value }) }
      return seen
    }
    #expect(seen == ["caller", "body", "caller", "caller", "caller"] + Array(repeating: "none", count: 8))
  }

  @Test func `bound values live until the body has ended, though its coroutine was cancelled`() async throws {
    let local = CoroutineLocal<Tracked?>(default: nil)
    let (end, started, trace, ended) = (DispatchSemaphore(value: 0), Arrivals(), Trace(), Gate())
    let job = co_launch {
      try local.withValue(Tracked("binding", trace)) {
        try co_blocking {
          started.arrive()
          end.wait()
          trace(local.value == nil ? "lost" : "still bound")
          ended.open()
        }
      }
    }
    try await started.wait(for: 1)
    job.cancel()
    #expect(await asyncOutcome { try await job.value } == "CancellationError")
    end.signal()
    try await onCoroutine { try ended.pass() }
    #expect(trace.all.first == "still bound")
  }

  @Test func `a parked coroutine is dumped as waiting for blocking work`() async throws {
    let (end, started) = (DispatchSemaphore(value: 0), Arrivals())
    let queue = taggedQueue("dump")
    let job = co_launch(on: queue, name: "reads a slow disk") {
      try co_blocking {
        started.arrive()
        end.wait()
      }
    }
    try await started.wait(for: 1)
    // A block of the same queue runs between two drains: the coroutine has parked.
    let dump = try await onBlock(of: queue) { dumpOfOwnQueue() }
    end.signal()
    try await job.value
    #expect(dump.split(separator: "\n").contains { $0.contains("reads a slow disk") && $0.contains("blocking work") })
  }

  @Test func `a world runs bodies itself, and waits for those that are declared real`() async throws {
    let sum = try await onOwnThread {
      try Simulation(seed: 7).run {
        let jobs = (1...20).map { number in
          co_launch {
            try number % 2 == 0 ? co_blocking { number } : World.outside { try co_blocking { number } }
          }
        }
        return try jobs.reduce(0) { try $0 + $1.join() }
      }
    }
    #expect(sum == 210)
  }
}
