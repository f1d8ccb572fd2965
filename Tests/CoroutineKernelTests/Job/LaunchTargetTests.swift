import CoroutineTesting
import Dispatch
import Testing

@testable import Coroutine

/// A type of a program that stands for a queue.
private struct Department: LaunchTarget {
  let queue: DispatchQueue
  var _destination: _LaunchDestination { queue._destination }
}

@Suite("Targets of launches and switches", .timeLimit(.minutes(10)))
struct LaunchTargetTests {
  /// Names what runs the caller.
  private static func here(_ loop: Loop) -> String {
    if loop.isCurrentForCoroutines { return "loop" }
    return WorkerPool.ofCaller === WorkerPool.shared ? "workers" : currentTag ?? "nowhere"
  }

  @Test func `a coroutine and a child begin on any target, and a running coroutine moves there`() async throws {
    let loop = Loop()
    let queue = taggedQueue("queue")
    let targets: [(String, any LaunchTarget)] = [
      ("queue", queue), ("queue", Department(queue: queue)), ("loop", HostedScheduler(loop)),
      ("workers", WorkerPoolExecutor.shared),
    ]
    for (name, target) in targets {
      #expect(try await co_launch(on: target) { Self.here(loop) }.value == name)
      let seen = try await co_launch(on: taggedQueue("home")) {
        var seen = [try co_scope { scope in try scope.launch(on: target) { Self.here(loop) }.join() }]
        for _ in 0..<2 {
          try co_switch(to: target)
          seen.append(Self.here(loop))
        }
        return seen
      }.value
      #expect(seen == [name, name, name])
    }
  }

  @Test func `a call may leave the queue out, choose it, or write nil or main`() async throws {
    let queue = taggedQueue("queue")
    for isChosen in [true, false] {
      let some = isChosen ? queue : nil
      let tags = [
        try await co_launch(on: some) { currentTag }.value,
        try await co_launch(on: isChosen ? queue : nil) { currentTag }.value,
        try await co_launch(on: isChosen ? .some(queue) : .none) { currentTag }.value,
      ]
      #expect(tags == Array(repeating: isChosen ? "queue" : nil, count: 3))
    }
    let tags = try await co_launch(on: queue) {
      try co_scope { scope in
        let jobs = [scope.launch { currentTag }, scope.launch(on: nil) { currentTag }]
        let onMain = scope.launch(on: .main) {
          dispatchPrecondition(condition: .onQueue(.main))
          try co_switch(to: .init(label: "new"))
          try co_switch(to: .main)
          return "main" as String?
        }
        return try co_all(jobs + [onMain])
      }
    }.value
    #expect(tags == ["queue", "queue", "main"])
  }

  @Test func `a coroutine of a queue that was started at once on a worker is not on the workers yet`() async throws {
    let isThere = try await onCoroutine {
      try co_launch(on: taggedQueue("queue"), start: .immediate) {
        try co_switch(to: WorkerPoolExecutor.shared)
        try co_yield()
        return currentTag == nil && WorkerPool.ofCaller === WorkerPool.shared
      }.join()
    }
    #expect(isThere)
  }

  @Test(.inWorlds) func `in a world, the workers and a queue are the world's`() throws {
    let start = worldTime
    let onWorkers = co_launch(on: taggedQueue("home")) {
      try co_switch(to: WorkerPoolExecutor.shared)
      try co_delay(.seconds(3_600))
      return try co_launch(on: WorkerPoolExecutor.shared) { worldTime }.join()
    }
    let onQueue = co_launch(on: Department(queue: taggedQueue("queue"))) {
      try co_delay(.seconds(3_600))
      return worldTime
    }
    #expect(try co_all([onWorkers, onQueue]).allSatisfy { $0 == start + .seconds(3_600) })
  }

  @Test func `a coroutine of a world does not move to a loop outside of it`() {
    let host = HostedScheduler(Loop())
    #expect(throws: (any Error).self) { try World().run { try co_switch(to: host) } }
  }
}
