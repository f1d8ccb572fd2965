import Coroutine
import Dispatch
import Testing

@Suite("Stress: promises that are settled, followed, cancelled and observed at once", .timeLimit(.minutes(10)))
struct RegisterSettleCancelTests {
  private static let threads = 8

  @Test func `handlers run once, with the one outcome, while eight threads register, settle and cancel`()
    async throws
  {
    let stress = Stress()
    let objects = Census()
    for round in 0..<stress.rounds(250) {
      let promise = Promise<Int>()
      let (attached, called, wrong) = (Census(), Census(), Census())
      let settled = Promise<Int>()
      try await onThreads(Self.threads) { thread in
        var random = stress.random(round * Self.threads + thread)
        for step in 0..<8 {
          switch Int.random(in: 0..<6, using: &random) {
          case 0 where step > 3: promise.fulfill(thread)
          case 1 where step > 3: promise.reject(Mark(number: thread))
          case 2 where step > 5: promise.cancel()
          case 3:
            attached.change()
            let held = objects.citizen()
            let link = promise.tap { outcome in
              held.use()
              if !Self.isSame(outcome, promise.result) { wrong.change() }
              called.change()
            }
            link.ignore()
          case 4:
            attached.change()
            promise.ensure { called.change() }.ignore()
          default:
            promise.then { $0 }.cancel()
          }
        }
      }
      promise.ignore()
      promise.fulfill(-1)
      settled.follow(promise.recover { _ -> Int in -2 })
      _ = try await settled.value
      await until(called, shows: attached.now)
      #expect(wrong.now == 0, "round \(round), \(stress.replay)")
    }
    await until(objects, shows: 0)
  }

  private static func isSame(_ one: Result<Int, any Error>, _ other: Result<Int, any Error>?) -> Bool {
    switch (one, other) {
    case (.success(let one), .success(let other)?): one == other
    case (.failure(let one as Mark), .failure(let other as Mark)?): one == other
    case (.failure(is CancellationError), .failure(is CancellationError)?): true
    default: false
    }
  }

  @Test func `handlers of one thread run in the order of registering while others settle`() async throws {
    let stress = Stress()
    for round in 0..<stress.rounds(300) {
      let promise = Promise<Int>()
      let queue = queues(1)[0]
      let order = Order()
      let last = Promise<Void>()
      try await onThreads(2) { thread in
        if thread == 0 {
          for number in 0..<50 { promise.then(on: queue) { _ in order.append(number) }.ignore() }
          promise.then(on: queue) { _ in last.fulfill(()) }.ignore()
        } else {
          promise.fulfill(round)
        }
      }
      try await last.value
      #expect(order.numbers == Array(0..<50), "round \(round), \(stress.replay)")
    }
  }

  /// Written by handlers of one serial queue, read after the last of them.
  private final class Order: @unchecked Sendable {
    // Sound because one serial queue writes, and the reader has waited for its last block.
    private(set) var numbers: [Int] = []
    func append(_ number: Int) { numbers.append(number) }
  }

  @Test func `threads that make promises follow each other never make a cycle that hangs`() async throws {
    let stress = Stress()
    for round in 0..<stress.rounds(400) {
      let nodes = (0..<6).map { _ in Promise<Int>() }
      let links = nodes.map { $0.then { $0 } }
      let all = Promise.allSettled([nodes[0], links[1]]).then { $0.count }
      try await onThreads(Self.threads) { thread in
        var random = stress.random(round * Self.threads + thread)
        for _ in 0..<4 {
          let follower = nodes.randomElement(using: &random)!
          switch Int.random(in: 0..<6, using: &random) {
          case 0: follower.follow(nodes.randomElement(using: &random)!)
          case 1: follower.follow(links.randomElement(using: &random)!)
          case 2: follower.follow(all)
          // These wait for their promise already.
          case 3: links.randomElement(using: &random)!.follow(nodes.randomElement(using: &random)!)
          case 4: links.randomElement(using: &random)!.follow(links.randomElement(using: &random)!)
          default: links.randomElement(using: &random)!.cancel()
          }
        }
      }
      // Promises that follow none settle now; every other one follows such a promise, or has rejected with cycle.
      for waiter in nodes { waiter.fulfill(round) }
      for promise in nodes + links + [all] {
        promise.ignore()
        do {
          _ = try await promise.value
        } catch CoroutineError.cycle {
        } catch is CancellationError {
        }
      }
    }
  }

  @Test func `combinators whose members settle and are cancelled at once settle once, and release everything`()
    async throws
  {
    let stress = Stress()
    let objects = Census()
    for round in 0..<stress.rounds(250) {
      let members = (0..<12).map { _ in Promise<Census.Citizen>() }
      let combined = [
        Promise.all(members, losers: .cancelled).asVoid(), Promise.any(members).asVoid(),
        Promise.race(members, losers: .cancelled).asVoid(), Promise.allSettled(members).asVoid(),
        Promise.all(Dictionary(uniqueKeysWithValues: members.enumerated().map { ($0, $1) })).asVoid(),
      ]
      try await onThreads(Self.threads) { thread in
        var random = stress.random(round * Self.threads + thread)
        for _ in 0..<6 {
          let member = members.randomElement(using: &random)!
          switch Int.random(in: 0..<8, using: &random) {
          case 0...4: member.fulfill(objects.citizen())
          case 5: member.reject(Mark(number: thread))
          case 6: combined.randomElement(using: &random)!.cancel()
          default: member.then { $0 }.cancel()
          }
        }
      }
      for member in members { member.cancel() }
      for promise in combined {
        promise.ignore()
        _ = await Task { try await promise.value }.result
      }
    }
    await until(objects, shows: 0)
  }

  @Test func `promises that are released while threads attach, cancel and follow reject their waiters`() async throws {
    let stress = Stress()
    for round in 0..<stress.rounds(400) {
      let holder = Holder()
      holder.promise = Promise<Int>()
      let derived = (0..<3).map { _ in holder.promise!.then { $0 } }
      let follower = Promise<Int>()
      follower.follow(holder.promise!)
      let kept = Promise<Int>()
      let extra = Promise.race([kept])
      extra.follow(holder.promise!)
      let all = Promise.all(derived + [follower, extra])
      try await onThreads(3) { thread in
        switch thread {
        case 0: holder.promise = nil
        case 1: (round.isMultiple(of: 4) ? extra : derived[round % 3]).cancel()
        default: round.isMultiple(of: 2) ? follower.cancel() : all.cancel()
        }
      }
      for promise in derived + [follower, extra] {
        let result = await Task { try await promise.value }.result
        guard case .failure(let error) = result else {
          Issue.record("a value, \(stress.replay)")
          continue
        }
        let isAbandoned = if case CoroutineError.abandoned = error { true } else { false }
        #expect(isAbandoned || error is CancellationError, "\(error), \(stress.replay)")
      }
      all.ignore()
      kept.cancel()
    }
  }

  @Test func `combinators of otherwise unreferenced links are cancelled while the links settle and are released`()
    async throws
  {
    let stress = Stress()
    for round in 0..<stress.rounds(200) {
      let works = (0..<12).map { _ in Promise<Int>() }
      // Cancelling the first takes some time, in which the others may be released.
      let work = Promise<Int>()
      let long = (0..<1000).reduce(work.asVoid()) { last, _ in last.asVoid() }
      let all = Promise.allSettled([long] + works.map { $0.asVoid().asVoid() })
      all.ignore()
      try await onThreads(3) { thread in
        var random = stress.random(round * Self.threads + thread)
        if thread == 0 { return all.cancel() }
        for work in works.shuffled(using: &random) { work.fulfill(thread) }
      }
      let result = await Task { try await all.timeout(.seconds(60)).value }.result
      if case .failure(let error) = result { #expect(error is CancellationError, "round \(round), \(stress.replay)") }
      withExtendedLifetime(work) {}
    }
  }

  @Test func `bounded alls and retries whose work is settled and cancelled at once end, and release everything`()
    async throws
  {
    let stress = Stress()
    let objects = Census()
    for round in 0..<stress.rounds(250) {
      let works = (0..<12).map { _ in Promise<Int>() }
      let (held, queue) = (objects.citizen(), queues(1)[0])
      let body: @Sendable (Int) -> Promise<Int> = { number in
        held.use()
        return works[number % 12]
      }
      let (bounded, settled) = (
        Promise<Int>.all(of: 0..<12, concurrently: 3, on: queue, body),
        Promise<Int>.allSettled(of: 0..<12, concurrently: 3, body)
      )
      let retried = Promise<Int>.retry(attempts: 12, delay: Backoff { _ in .microseconds(round % 2) }, body)
      try await onThreads(Self.threads) { thread in
        var random = stress.random(round * Self.threads + thread)
        for _ in 0..<6 {
          let work = works.randomElement(using: &random)!
          switch Int.random(in: 0..<16, using: &random) {
          case 0...6: work.fulfill(thread)
          case 7...9: work.reject(Mark(number: thread))
          case 10: bounded.cancel()
          case 11: settled.cancel()
          case 12: retried.cancel()
          case 13: retried.fulfill(thread)
          case 14: bounded.follow(settled.then { _ in [] })
          default: work.then { $0 }.cancel()
          }
        }
      }
      for work in works { work.fulfill(round) }
      for promise in [bounded.asVoid(), settled.asVoid(), retried.asVoid()] {
        promise.ignore()
        _ = await Task { try await promise.timeout(.seconds(60)).value }.result.mapError {
          if $0 is TimeoutError { Issue.record("a hang in round \(round), \(stress.replay)") }
          return $0
        }
      }
    }
    await until(objects, shows: 0)
  }

  private final class Holder: @unchecked Sendable {
    // Sound because after the start only the thread that empties it accesses it.
    var promise: Promise<Int>?
  }
}
