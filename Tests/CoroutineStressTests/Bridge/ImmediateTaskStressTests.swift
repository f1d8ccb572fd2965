import Coroutine
import Dispatch
import Testing

private enum Request {
  @TaskLocal static var user = -1
}

@inline(never)
private func currentTask() -> Int? { withUnsafeCurrentTask { $0?.hashValue } }

@Suite("Stress: waits inside of Task.immediate", .timeLimit(.minutes(10)))
struct ImmediateTaskStressTests {
  /// A coroutine, a Task in it, a coroutine that the Task starts immediately, and a Task in that, all of which move
  /// from queue to queue; returns how often one saw the state of another.
  private static func nest(_ user: Int, _ queues: [DispatchQueue]) throws -> Int {
    let strangers = Census()
    func go(_ step: Int) throws { try co_switch(to: queues[(user + step) % queues.count]) }
    func part(_ user: Int, _ body: () throws -> Void) throws {
      let mine = currentTask()
      try Request.$user.withValue(user) {
        try body()
        if mine == nil || currentTask() != mine || Request.user != user { strangers.change() }
      }
    }
    let task = Task.immediate {
      try part(user) {
        try go(1)
        let inner = co_launch(start: .immediate) {
          // Not in the Task that has launched it, but with its bindings.
          if currentTask() != nil || Request.user != user { strangers.change() }
          let task = Task.immediate { try part(user + 1) { try go(2) } }
          if currentTask() != nil || Request.user != user { strangers.change() }
          try co_await { try await task.value }
        }
        try co_yield()
        try inner.join()
        try go(3)
      }
    }
    if currentTask() != nil || Request.user != -1 { strangers.change() }
    try co_await { try await task.value }
    return strangers.now
  }

  @Test func `each of a hundred thousand nested migrating calls sees its own Task and its own bindings`()
    async throws
  {
    let stress = Stress()
    let calls = stress.rounds(50_000, least: 100)
    let queues = queues(4)
    let jobs = (0..<50).map { user in
      co_launch(on: user.isMultiple(of: 2) ? queues[user % 4] : nil) {
        var strangers = 0
        for call in 0..<calls / 50 { strangers += try Self.nest(user * 1_000 + call, queues) }
        return strangers
      }
    }
    for job in jobs { #expect(try await job.value == 0, "\(stress.replay)") }
    for queue in queues {
      let seen = Promise<Bool>()
      queue.async { seen.fulfill(currentTask() == nil && Request.user == -1) }
      #expect(try await co_launch { try co_await(seen) }.value, "\(stress.replay)")
    }
  }
}
