import Coroutine
import CoroutineTesting
import Testing

/// A body that yields while it begins to wait, and whose next step another coroutine makes.
@Suite(.timeLimit(.minutes(10)))
struct GeneratorStepperTests {
  private enum Question: Sendable { case total(Reply<Int>) }

  @Test func `co_suspend in a body parks and wakes the coroutine that makes the step`() throws {
    let seen = try World().run {
      let resumers = Channel<Resumer<Int>>(1)
      // Sound because the coroutines make their steps one after the other.
      nonisolated(unsafe) let generator = co_sequence(of: Int.self) { yield in
        let value: Int = try co_suspend { done in
          _ = resumers.trySend(done)
          try yield(1)
        }
        try yield(value)
      }
      return try Self.steps(of: generator) { try resumers.receive()?.resume(7) }
    }
    #expect(seen == "[7] slept")
  }

  @Test func `an ask in a body parks and wakes the coroutine that makes the step`() throws {
    let seen = try World().run {
      let gate = Latch(1)
      let counter = co_actor(of: Question.self) { mailbox in
        while case .total(let reply)? = try mailbox.receive() {
          try gate.wait()
          reply(7)
        }
      }
      // Sound because the coroutines make their steps one after the other.
      nonisolated(unsafe) let generator = co_sequence(of: Int.self) { yield in
        let value = try counter.ask { reply in
          try? yield(1)
          return .total(reply)
        }
        try yield(value)
      }
      let seen = try Self.steps(of: generator) { gate.countDown() }
      counter.stop()
      return seen
    }
    #expect(seen == "[7] slept")
  }

  /// One coroutine makes the first step and then sleeps; another makes the next one, which waits until `answer`.
  private static func steps(of generator: Generator<Int, Never, Void>, _ answer: () throws -> Void) throws -> String {
    // Sound because the coroutines make their steps one after the other.
    nonisolated(unsafe) let generator = generator
    let first = co_launch { () throws -> String in
      _ = generator.next()
      try co_delay(.seconds(1))
      return "slept"
    }
    try co_delay(.milliseconds(1))
    let second = co_launch { generator.next().map { [$0] } ?? [] }
    try co_delay(.milliseconds(1))
    try answer()
    return "\(try second.join()) \(try first.join())"
  }
}
