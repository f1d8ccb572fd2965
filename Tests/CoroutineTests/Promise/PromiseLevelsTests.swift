import Synchronization
import Testing

@testable import Coroutine

/// Rounds that each wait for a gate, and then return the promise of the next round.
private final class Rounds: Sendable {
  enum Route: CaseIterable { case then, thenResult, recover, rescue, guarantee, follow }

  private let route: Route
  private let keeps: Bool
  private let state = Locked((gate: Promise<Void>(), count: 0, kept: [Promise<Int>]()))
  let isCancelled = Flag()

  init(_ route: Route, keeps: Bool = false) { (self.route, self.keeps) = (route, keeps) }

  var count: Int { state.withLock { $0.count } }
  var kept: [Promise<Int>] { state.withLock { $0.kept } }

  func next() -> Promise<Int> {
    let gate = Promise<Void>()
    gate.onCancel = { [isCancelled] in isCancelled.raise() }
    let promise: Promise<Int> =
      switch route {
      case .then: gate.then { self.next() }
      case .thenResult: gate.thenResult { _ in self.next() }
      case .recover: gate.then { 0 }.recover { _ -> Promise<Int> in self.next() }
      case .rescue: gate.then { 0 }.rescue { (_: Oops) -> Promise<Int> in self.next() }
      case .guarantee: Guarantee(gate.recover { _ in }).then { Guarantee(self.next()) }.promise
      case .follow: following(gate)
      }
    state.withLock {
      $0.gate = gate
      $0.count += 1
      if keeps { $0.kept.append(promise) }
    }
    return promise
  }

  private func following(_ gate: Promise<Void>) -> Promise<Int> {
    let promise = Promise<Int>()
    gate.then { promise.follow(self.next()) }.ignore()
    return promise
  }

  /// Lets go of the last round's gate, whose handler would begin another round and so keeps this.
  func end() {
    let gate = state.withLock { state in
      defer { state.gate = Promise() }
      return state.gate
    }
    _ = consume gate
  }

  /// Begins the next round, and returns when it has begun.
  func goOn(_ rounds: Int) throws {
    for _ in 0..<rounds {
      let (gate, number) = state.withLock { ($0.gate, $0.count) }
      if route == .recover || route == .rescue { gate.reject(Oops("round")) } else { gate.fulfill() }
      while count == number { try co_yield() }
    }
    // The handler returns after the round has begun.
    for _ in 0..<3 { try co_yield() }
  }
}

/// The number of promises that a promise waits for, one behind the other.
private func levels(_ promise: AnyPromise) -> Int {
  var (count, next) = (0, promise.ref.node.pointee.upstream)
  while let level = next {
    count += 1
    next = level.node.pointee.upstream
  }
  return count
}

@Suite("Promise: a loop by recursion", .timeLimit(.minutes(10)))
struct PromiseLevelsTests {
  @Test(arguments: Rounds.Route.allCases)
  fileprivate func `keeps no promise of the rounds that are over`(_ route: Rounds.Route) async throws {
    try await onSerialQueue {
      let rounds = Rounds(route)
      let first = rounds.next()
      let before = levels(first)
      try rounds.goOn(50)
      #expect(levels(first) <= before + 2)
      #expect(!first.isSettled)
      // The promise of the present round is reached by a cancellation; that of the follower waits for no gate.
      first.cancel()
      #expect(rounds.isCancelled.isRaised == (route != .follow))
      #expect(outcome { try co_await(first) } == "CancellationError")
      rounds.end()
    }
  }

  @Test func `ends with the outcome of the last round`() async throws {
    @Sendable func poll(_ left: Int) -> Promise<Int> {
      Promise.value(left).then { left -> Promise<Int> in
        if left == 0 { return .value(7) }
        return left < 0 ? .failure(Oops("last")) : poll(left - 1)
      }
    }
    @Sendable func fail(_ left: Int) -> Promise<Int> {
      Promise.value(left).then { left in left == 0 ? poll(-1) : fail(left - 1) }
    }
    try await onSerialQueue {
      #expect(outcome { try co_await(poll(200)) } == "7")
      #expect(outcome { try co_await(fail(200)) } == "Oops(last)")
    }
  }

  enum End: CaseIterable { case rejects, isCancelled, isReleased }

  // One inside of another, twenty thousand releases overflow the stack.
  @Test(arguments: End.allCases) func `with a resumer in each round ends round by round`(_ end: End) async throws {
    try await onSerialQueue {
      var first: Promise<Int>? = Promise<Int>()
      var last = try #require(first)
      for _ in 0..<20_000 {
        let before = last
        last = Promise<Int> { done in before.then { done.resume($0) }.ignore() }
      }
      switch end {
      case .rejects: first?.reject(Oops("first"))
      case .isCancelled: first?.cancel()
      case .isReleased: first = nil
      }
      #expect(outcome { try co_await(last) } == "abandoned")
    }
  }

  @Test func `settles the rounds' promises that the program has kept`() async throws {
    try await onSerialQueue {
      let rounds = Rounds(.then, keeps: true)
      let first = rounds.next()
      try rounds.goOn(20)
      #expect(levels(first) > 20)
      for promise in rounds.kept { #expect(!promise.isSettled) }
      first.cancel()
      // Each has another holder, but no other waiter: the cancellation goes all the way.
      for promise in rounds.kept { #expect(outcome { try co_await(promise) } == "CancellationError") }
    }
  }

  @Test func `may be cancelled from other threads at any moment`() async throws {
    @Sendable func poll(_ left: Int) -> Promise<Int> {
      left == 0 ? .value(7) : Promise.value(1).then { _ in poll(left - 1) }
    }
    // Not on a thread of the Tasks, for which a busy process may wait while the loop goes on.
    try await onOwnThread {
      for round in 0..<60 {
        let (ended, other) = (poll(300), poll(.max))
        let waiting = other.then { $0 + 1 }
        #expect(outcome { try ended.blockingWait() } == "7")
        if round.isMultiple(of: 2) { other.cancel() } else { waiting.cancel() }
        #expect(outcome { try waiting.blockingWait() } == "CancellationError")
      }
    }
  }
}
