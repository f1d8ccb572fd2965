import Testing

@testable import Coroutine

/// The failure of a `for in` goes to the hook for unhandled errors, unless the coroutine throws it.
@Suite("for-in over a channel that ends by a failure", .inWorlds, .timeLimit(.minutes(5)))
struct ChannelLoopEndTests {
  /// Launches a coroutine that sums what it receives, and then runs `after`; cancels it when it has received a number.
  private func cancelledLoop(
    _ reason: any Error,
    after: @escaping @Sendable (Channel<Int>) throws -> Void
  ) throws -> String {
    let (channel, seen) = (Channel<Int>(4), Channel<Int>(4))
    let job = co_launch(name: "sum") { () -> Int in
      var sum = 0
      for number in channel {
        sum += number
        try seen.send(number)
      }
      try after(channel)
      return sum
    }
    try channel.send(5)
    _ = try seen.receive()
    job.cancel(reason)
    return outcome { try job.join() }
  }

  /// The same for a channel that is closed with a cause.
  private func closedLoop(
    _ cause: any Error,
    after: @escaping @Sendable (Channel<Int>) throws -> Void
  ) throws -> String {
    let channel = Channel<Int>(4)
    let job = co_launch(name: "sum") { () -> Int in
      var sum = 0
      for number in channel { sum += number }
      try after(channel)
      return sum
    }
    try channel.send(5)
    channel.close(cause)
    return outcome { try job.join() }
  }

  @Test func `a coroutine that returns what a cancelled loop has received is reported, with name and place`() throws {
    let errors = UnhandledErrors()
    #expect(try cancelledLoop(errors.failure("cancelled")) { _ in } == "5")
    #expect(errors.labels == ["cancelled"])
    #expect(errors.jobs[0].contains("\"sum\"") && errors.jobs[0].contains("ChannelLoopEndTests.swift:"))
  }

  @Test func `a coroutine that throws the cancellation at its next wait is not reported`() throws {
    let errors = UnhandledErrors()
    #expect(try cancelledLoop(errors.failure("cancelled")) { _ in try co_yield() } == "Failure(cancelled)")
    let seen = try cancelledLoop(errors.failure("seen")) { _ in #expect(co_isCancelled) }
    #expect(seen == "5")
    let hidden = try cancelledLoop(errors.failure("hidden")) { _ in
      try co_shield { try co_yield() }
      try co_yield()
    }
    #expect(hidden == "Failure(hidden)")
    #expect(errors.labels == [])
  }

  @Test func `a cause is reported, unless the next receive throws it`() throws {
    let errors = UnhandledErrors()
    #expect(try closedLoop(errors.failure("returned")) { _ in } == "5")
    #expect(errors.labels == ["returned"])
    #expect(try closedLoop(errors.failure("thrown")) { _ = try $0.receive() } == "Failure(thrown)")
    #expect(errors.labels == ["returned"])
    let other = try closedLoop(errors.failure("other")) { _ in
      try co_yield()
      try co_yield()
      #expect(errors.labels == ["returned", "other"])
    }
    #expect(other == "5")
    #expect(errors.labels == ["returned", "other"])
  }

  @Test func `a cancellation that ends with its scope is reported at the next wait`() throws {
    let errors = UnhandledErrors()
    let never = Channel<Int>()
    let count = try co_scope { scope in
      scope.cancel(errors.failure("scope"))
      var count = 0
      for _ in never { count += 1 }
      return count
    }
    #expect(count == 0 && errors.labels == [])
    try co_yield()
    #expect(errors.labels == ["scope"])
  }

  @Test func `a loop that has received all values reports nothing`() throws {
    let errors = UnhandledErrors()
    let channel = Channel<Int>(4)
    try channel.send(5)
    channel.close()
    var sum = 0
    for number in channel { sum += number }
    #expect(sum == 5)
    try co_yield()
    #expect(errors.labels == [])
  }
}
