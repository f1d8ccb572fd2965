import Coroutine
import Testing

@Suite("Promise: follow", .timeLimit(.minutes(10)))
struct FollowTests {
  @Test func `a follower settles as the followed promise does, before and after`() async {
    let (late, other) = (Promise<Int>(), Promise<Int>())
    late.follow(other)
    other.fulfill(1)
    #expect(late.result.map { outcome($0) } == "1")
    let early = Promise<Int>()
    early.follow(other)
    #expect(early.result.map { outcome($0) } == "1")
    let failing = Promise<Int>()
    failing.follow(.failure(Oops("other")))
    #expect(await asyncOutcome { try await failing.value } == "Oops(other)")
  }

  @Test func `a follower is locked in: later settles and another follow are refused`() {
    let (follower, other, third) = (Promise<Int>(), Promise<Int>(), Promise<Int>.value(3))
    follower.follow(other)
    #expect(!follower.fulfill(2))
    #expect(!follower.reject(Oops("late")))
    follower.follow(third)
    #expect(follower.result == nil)
    other.fulfill(1)
    #expect(follower.result.map { outcome($0) } == "1")
  }

  @Test func `a settled promise does not follow`() {
    let (settled, other) = (Promise.value(1), Promise<Int>())
    settled.follow(other)
    other.fulfill(2)
    #expect(settled.result.map { outcome($0) } == "1")
  }

  @Test func `a promise that follows itself rejects with cycle`() async {
    let promise = Promise<Int>()
    promise.follow(promise)
    #expect(await asyncOutcome { try await promise.value } == "cycle")
  }

  @Test func `two and three promises that follow each other reject with cycle`() async {
    for count in 2...3 {
      let ring = (0..<count).map { _ in Promise<Int>() }
      for (index, promise) in ring.enumerated() { promise.follow(ring[(index + 1) % count]) }
      for promise in ring { #expect(await asyncOutcome { try await promise.value } == "cycle") }
    }
  }

  @Test func `a cycle through derived promises, returned promises and combinators rejects with cycle`() async {
    let head = Promise<Int>()
    let tail = head.then { $0 + 1 }.recover { _ -> Int in throw Oops("unreached") }.tap { _ in }
    head.follow(tail)
    #expect(await asyncOutcome { try await head.value } == "cycle")

    let member = Promise<Int>()
    let other = Promise<Int>()
    let sum = Promise.all([other, member]).then { $0.reduce(0, +) }
    member.follow(sum)
    #expect(await asyncOutcome { try await member.value } == "cycle")
    #expect(await asyncOutcome { try await sum.value } == "cycle")
    _ = await asyncOutcome { try await tail.value }
  }

  @Test func `a then whose body returns its own promise, or one derived from it, rejects with cycle`()
    async throws
  {
    let (start, box) = (Promise<Int>(), Locked<Promise<Int>?>(nil))
    let direct = start.then { _ in box.current! }
    box.current = direct
    start.fulfill(0)
    #expect(await asyncOutcome { try await direct.value } == "cycle")

    let (restart, derived) = (Promise<Int>(), Locked<Promise<Int>?>(nil))
    let indirect = restart.then { _ in derived.current! }
    derived.current = indirect.then { $0 + 1 }
    restart.fulfill(0)
    #expect(await asyncOutcome { try await indirect.value } == "cycle")
    _ = await asyncOutcome { try await derived.current!.value }
    (box.current, derived.current) = (nil, nil)
  }

  @Test func `a link can be made to follow before it would settle`() async {
    let (start, other) = (Promise<Int>(), Promise<Int>())
    let link = start.then { $0 }
    link.follow(other)
    other.fulfill(5)
    #expect(link.result.map { outcome($0) } == "5")
    #expect(link.isFulfilled)
    start.fulfill(1)
  }

  @Test func `a derived promise that follows settles by whichever comes first`() async {
    let (start, late) = (Promise<Int>(), Promise<Int>())
    let link = start.then { $0 + 1 }
    link.follow(late)
    #expect(!link.fulfill(7))
    start.fulfill(1)
    #expect(await asyncOutcome { try await link.value } == "2")
    late.fulfill(9)

    let (member, other) = (Promise<Int>(), Promise<[Int]>())
    let all = Promise.all([member])
    all.follow(other)
    other.fulfill([5])
    #expect(await asyncOutcome { try await all.value } == "[5]")
    member.fulfill(1)
    #expect(all.result.map { outcome($0) } == "[5]")
  }

  @Test func `a follower of an abandoned promise rejects with abandoned`() async {
    let follower = Promise<Int>()
    Self.followNobody(follower)
    #expect(await asyncOutcome { try await follower.value } == "abandoned")
  }

  private static func followNobody(_ follower: Promise<Int>) { follower.follow(Promise()) }

  @Test func `a cycle is found through combinators that share their members many times`() async {
    let head = Promise<Int>()
    var last = head
    // Each level doubles the number of paths to the head: following all would take for ever.
    for _ in 0..<64 {
      let (one, two) = (last.then { $0 }, last.then { $0 })
      last = Promise.all([one, one, two]).then { $0[0] }
    }
    let other = Promise<Int>()
    other.follow(last)
    #expect(other.isPending)
    head.follow(last)
    #expect(await asyncOutcome { try await head.value } == "cycle")
    #expect(await asyncOutcome { try await other.value } == "cycle")
  }

  @Test func `a cycle is found through a hundred thousand combinators, on a small stack`() async throws {
    let seen = try await co_launch(on: taggedQueue("nested"), stack: .bytes(64 * 1024)) {
      let head = Promise<Int>()
      var last = head
      for _ in 0..<(isSanitized ? 20_000 : 100_000) { last = Promise.race([last]) }
      head.follow(last)
      return outcome { try co_await(last) }
    }.value
    #expect(seen == "cycle")
  }

  @Test func `a derived promise that follows late finds the cycle`() {
    let upstream = Promise<Int>()
    let link = upstream.then { $0 }
    let below = link.then { $0 }
    link.follow(below)
    #expect(link.result.map { outcome($0) } == outcome(.failure(CoroutineError.cycle) as Result<Int, any Error>))
    #expect(below.isRejected)
    below.ignore()
    withExtendedLifetime(upstream) {}
  }

  @Test func `cancelling a derived promise that follows late reaches both`() {
    let (upstream, other) = (Promise<Int>(), Promise<Int>())
    let link = upstream.then { $0 }
    link.follow(other)
    link.cancel()
    #expect(upstream.error is CancellationError && other.error is CancellationError)

    let (second, shared) = (Promise<Int>(), Promise<Int>())
    let consumer = shared.then { $0 }
    let another = second.then { $0 }
    another.follow(shared)
    another.cancel()
    #expect(second.isRejected && shared.isPending)
    withExtendedLifetime(consumer) {}
  }

  @Test func `a derived promise that follows late still settles as the promise that its handler returns`() async throws
  {
    let (upstream, other) = (Promise<Int>(), Promise<Int>())
    let link = upstream.then { _ in Promise.value(5) }
    link.follow(other)
    upstream.fulfill(1)
    #expect(try await link.value == 5)
    withExtendedLifetime(other) {}
  }
}
