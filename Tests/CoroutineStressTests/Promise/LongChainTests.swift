import Coroutine
import Dispatch
import Testing

/// Chains of a million links on the smallest stack: a recursion per link would need megabytes and end the process.
@Suite("Stress: chains of a million links", .timeLimit(.minutes(10)))
struct LongChainTests {
  /// A million in optimised builds; fewer are enough in a debug build.
  private static let links = Stress().rounds(_isDebugAssertConfiguration() ? 200_000 : 1_000_000, least: 10_000)

  /// Runs `body` once with a short chain on a large stack: the Swift runtime creates metadata at first use, for which
  /// the smallest stack is too small.
  private func onSmallStack<Output: Sendable>(_ body: @escaping @Sendable (Int) throws -> Output) async throws -> Output
  {
    _ = try await co_launch(on: queues(1)[0]) { try body(10) }.value
    return try await co_launch(on: queues(1)[0], stack: Stress().smallStack) { try body(Self.links) }.value
  }

  @Test func `chains with handlers settle`() async throws {
    let value = try await onSmallStack { links in
      let head = Promise<Int>()
      var tail = head
      for _ in 0..<links { tail = tail.then { $0 + 1 } }
      head.fulfill(0)
      return try co_await(tail)
    }
    #expect(value == Self.links)
  }

  @Test func `a failure and a value pass through chains`() async throws {
    let seen = try await onSmallStack { links in
      let (bad, good) = (Promise<Int>(), Promise<Int>())
      var (failing, passing) = (bad, good)
      for _ in 0..<links {
        failing = failing.then { $0 + 1 }
        passing = passing.recover { _ -> Int in -1 }
      }
      bad.reject(Mark(number: 5))
      good.fulfill(6)
      // No #expect here: it needs more stack than there is.
      do {
        return [try co_await(failing)]
      } catch let error as Mark {
        return [error.number, try co_await(passing)]
      }
    }
    #expect(seen == [5, 6])
  }

  @Test func `chains of followers settle, built from either end`() async throws {
    let seen = try await onSmallStack { links in
      let (first, head) = (Promise<Int>(), Promise<Int>())
      var (last, tail) = (first, head)
      for _ in 0..<links {
        let next = Promise<Int>()
        last.follow(next)
        last = next
        let follower = Promise<Int>()
        follower.follow(tail)
        tail = follower
      }
      last.fulfill(1)
      head.fulfill(2)
      return [try co_await(first), try co_await(tail)]
    }
    #expect(seen == [1, 2])
  }

  @Test func `followers that waited for another promise before settle, and can be cancelled`() async throws {
    let seen = try await onSmallStack { links in
      let (head, never, work) = (Promise<Int>(), Promise<Int>(), Promise<Int>())
      var (tail, cancelled) = (head, work)
      for _ in 0..<links / 4 {
        let (link, other) = (never.timeout(.seconds(3600)), Promise.race([never]))
        link.follow(tail)
        other.follow(cancelled)
        (tail, cancelled) = (link, other)
      }
      head.fulfill(3)
      cancelled.cancel()
      return [try co_await(tail), work.isRejected ? 4 : 0]
    }
    #expect(seen == [3, 4])
  }

  @Test func `chains of combinators and guarantees settle, are abandoned, and are cancelled`() async throws {
    let seen = try await onSmallStack { links in
      let (head, work) = (Promise<Int>(), Promise<Int>())
      var (tail, sure, cancelled) = (head, Guarantee<Int>.never, work)
      for _ in 0..<links / 4 {
        tail = Promise.race([tail.timeout(.seconds(3600))], losers: .cancelled)
        sure = Guarantee.race([sure])
        cancelled = Promise.any([cancelled])
      }
      head.fulfill(3)
      cancelled.cancel()
      sure.promise.ignore()
      return [try co_await(tail), work.isRejected ? 4 : 0, sure.promise.isRejected ? 5 : 0]
    }
    #expect(seen == [3, 4, 5])
  }

  @Test func `pending chains that are released are rejected as abandoned`() async throws {
    let tail = try await onSmallStack { links in
      var tail = Promise<Int>()
      for _ in 0..<links { tail = tail.then { $0 + 1 } }
      return tail
    }
    #expect(tail.isRejected)
    tail.ignore()
    let objects = Census()
    try await onSmallStack { links in
      var tail = Promise<Int>()
      let citizen = objects.citizen()
      for _ in 0..<links { tail = tail.then { $0 + 1 } }
      tail = tail.then {
        citizen.use()
        return $0
      }
      tail.ignore()
    }
    await until(objects, shows: 0)
  }

  @Test func `chains that only pass outcomes on leave their source when the end is dropped`() async throws {
    let seen = try await onSmallStack { links in
      let head = Promise<Int>()
      var (copy, race, double, twist) = (head, head, head, head)
      for _ in 0..<links / 4 {
        copy = copy.uncancelled
        race = Promise.race([race.uncancelled])
        double = Promise.any([double, double])
        twist = Promise.race([twist, twist.uncancelled])
      }
      let last = [Weak(copy), Weak(race), Weak(double), Weak(twist)]
      (copy, race, double, twist) = (head, head, head, head)
      return last.filter { $0.promise != nil }.count
    }
    #expect(seen == 0)
  }

  @Test func `cancelling the end reaches the work`() async throws {
    let called = Census()
    let seen = try await onSmallStack { links in
      var kept: Resumer<Int>?
      let head = Promise<Int>(onCancel: { called.change() }, { kept = $0 })
      var tail = head
      for _ in 0..<links { tail = tail.then { $0 + 1 } }
      tail.cancel()
      withExtendedLifetime(kept) {}
      return [head.isRejected, tail.isRejected]
    }
    #expect(seen == [true, true])
    #expect(called.now == 2)
  }

  @Test func `a loop of promises that return promises settles`() async throws {
    let value = try await onSmallStack { links in try co_await(Self.count(down: links / 10)) }
    #expect(value == Self.links / 10)
  }

  private static func count(down rounds: Int, from total: Int = 0) -> Promise<Int> {
    Promise.value(rounds).then { left in
      left == 0 ? Promise.value(total) : count(down: left - 1, from: total + 1)
    }
  }
}

extension Guarantee where Success == Int {
  /// A guarantee whose resolver is dropped.
  fileprivate static var never: Guarantee { Guarantee { _ in } }
}

private struct Weak {
  weak var promise: Promise<Int>?
  init(_ promise: Promise<Int>) { self.promise = promise }
}
