import Coroutine
import Testing

/// Random graphs of promises: each thread extends the graph, cancels, settles, follows and drops, at random.
///
/// What the threads of a round do is given by the seed, the order is not.
@Suite("Stress: random graphs of promises that threads cancel at random", .timeLimit(.minutes(10)))
struct GraphStressTests {
  private static let threads = 4

  @Test func `each promise settles, each work is cancelled once if at all, and nothing is left`() async throws {
    let stress = Stress()
    let objects = Census()
    for round in 0..<stress.rounds(600) {
      let graph = Graph(objects)
      try await onThreads(Self.threads) { thread in
        var random = stress.random(round * Self.threads + thread)
        for _ in 0..<32 { graph.step(&random) }
      }
      let place = "round \(round), \(stress.replay)"
      for work in graph.works { work.promise.fulfill(round) }
      for promise in graph.drain() {
        if let error = await failure(of: promise), !Self.isPossible(error) { Issue.record("\(error), \(place)") }
      }
      for work in graph.works {
        await until(work.cancellations, shows: work.promise.error is CancellationError ? 1 : 0)
        #expect(work.cancellations.now <= 1, "\(place)")
      }
    }
    await until(objects, shows: 0)
  }

  private func failure(of promise: Promise<Int>) async -> (any Error)? {
    do { _ = try await promise.timeout(.seconds(60)).value } catch { return error }
    return nil
  }

  private static func isPossible(_ error: any Error) -> Bool {
    switch error {
    case CoroutineError.cycle, CoroutineError.abandoned, is CancellationError, is Mark, is AggregateError: true
    default: false
    }
  }
}

/// A promise that stands for work, and how often it was cancelled.
private struct Work: Sendable {
  let promise: Promise<Int>
  let cancellations = Census()
  /// Its release would reject the promise.
  private let resumer: Resumer<Int>

  init() { (promise, resumer) = Promise.pending(onCancel: { [cancellations] in cancellations.change() }) }
}

private final class Graph: Sendable {
  let works: [Work]
  private let objects: Census
  /// The promises that threads have references to.
  private let promises: ThreadMutex<[Promise<Int>]>
  /// Results of runs.
  ///
  /// No promise waits for them, because no search finds a cycle that leads through a run.
  private let ends = ThreadMutex<[Promise<Int>]>([])

  init(_ objects: Census) {
    self.objects = objects
    works = (0..<3).map { _ in Work() }
    promises = ThreadMutex(works.map(\.promise))
  }

  /// Empties the graph, and returns what was in it.
  func drain() -> [Promise<Int>] {
    promises.withLock { promises in
      defer { promises = [] }
      return promises
    }
      + ends.withLock { ends in
        defer { ends = [] }
        return ends
      }
  }

  func step(_ random: inout SeededRandom) {
    switch Int.random(in: 0..<16, using: &random) {
    case 0...7: add(derived(&random))
    case 8:
      let run = run(&random)
      ends.withLock { $0.append(run) }
    case 9: works.randomElement(using: &random)!.promise.fulfill(1)
    case 10: works.randomElement(using: &random)!.promise.reject(Mark(number: 2))
    case 11: any(&random).cancel()
    case 12: (ends.withLock { $0.last } ?? any(&random)).cancel()
    case 13: consumer(of: any(&random), &random)
    case 14:
      let (follower, other) = (any(&random), any(&random))
      if !works.contains(where: { $0.promise === follower }) { follower.follow(other) }
    default: drop(&random)
    }
  }

  private func any(_ random: inout SeededRandom) -> Promise<Int> {
    promises.withLock { [number = Int.random(in: 0 ... .max, using: &random)] in $0[number % $0.count] }
  }

  private func add(_ promise: Promise<Int>) {
    promise.ignore()
    promises.withLock { $0.append(promise) }
  }

  /// Drops the reference to a promise, but for those of works.
  private func drop(_ random: inout SeededRandom) {
    let number = Int.random(in: 0 ... .max, using: &random)
    // Released outside the lock.
    let dropped = promises.withLock { [first = works.count] promises -> Promise<Int>? in
      promises.count > first ? promises.remove(at: first + number % (promises.count - first)) : nil
    }
    withExtendedLifetime(dropped) {}
  }

  /// Makes a promise that waits for one or two others.
  private func derived(_ random: inout SeededRandom) -> Promise<Int> {
    let (one, other, held) = (any(&random), any(&random), objects.citizen())
    let losers: AnyPromise.Losers = Bool.random(using: &random) ? .cancelled : .leftRunning
    switch Int.random(in: 0..<14, using: &random) {
    case 0: return one.uncancelled
    case 1: return one.asVoid().then { held.use() }.then { 1 }
    case 2: return .race([one, other], losers: losers)
    case 3: return .any([one, other.uncancelled], losers: losers)
    case 4: return Promise.all([one, other], losers: losers).then { $0[0] }
    case 5: return Promise.allSettled([one, other]).then { $0.count }
    case 6: return one.timeout(.seconds(3600))
    case 7:
      return one.then { _ in
        held.use()
        return other
      }
    case 8:
      return one.recover { _ in
        held.use()
        return other
      }
    case 9: return one.tap { _ in held.use() }
    case 10: return one.ensureThen { other.asVoid() }
    case 11:
      let follower = Promise<Int>()
      follower.follow(one)
      return follower
    case 12:
      let link = one.then { $0 }
      link.follow(other)
      return link
    default:
      let race = Promise.race([one, one.uncancelled])
      race.follow(other)
      return race
    }
  }

  private func run(_ random: inout SeededRandom) -> Promise<Int> {
    let (one, other, held) = (any(&random), any(&random), objects.citizen())
    let isRetry = Bool.random(using: &random)
    let result =
      isRetry
      ? Promise<Int>.retry(attempts: 3) { attempt in
        held.use()
        return attempt == 1 ? one : other
      }
      : Promise<Int>.all(of: 0..<4, concurrently: 2) { element in
        held.use()
        return element == 0 ? one : other
      }.then { $0[0] }
    result.ignore()
    return result
  }

  /// Waits for a promise in one way or another, and gives it up.
  private func consumer(of promise: Promise<Int>, _ random: inout SeededRandom) {
    switch Int.random(in: 0..<4, using: &random) {
    case 0: co_launch { _ = try? co_await(promise) }.cancel()
    case 1: Task { try? await promise.value }.cancel()
    case 2: promise.observe { _ in }.cancel()
    default: promise.then { $0 }.cancel()
    }
  }
}
