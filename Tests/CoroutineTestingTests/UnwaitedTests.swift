import Coroutine
import CoroutineTesting
import Synchronization
import Testing

/// Exhaustive search over calls that never wait: which of two comes first must not be left out.
@Suite(.timeLimit(.minutes(10)))
struct UnwaitedTests {
  typealias Call = @Sendable () throws -> String

  /// Two calls on one object whose results show their order.
  struct Calls {
    /// A use before `one`: a coroutine's first use of an object is explored in any case.
    var first: Call?
    let one: Call
    let other: Call
    /// A look at the object after both.
    var last: Call = { "" }
  }

  struct Pair: Sendable, CustomTestStringConvertible {
    let testDescription: String
    /// Creates the object, and returns the calls.
    let make: @Sendable () throws -> Calls
    /// The number of rounds, and of preemptions: fewer for a pair that waits, because each wait is a step more.
    let rounds: Int

    init(_ name: String, rounds: Int, _ make: @escaping @Sendable () throws -> Calls) {
      testDescription = name
      self.rounds = rounds
      self.make = make
    }

    init(_ name: String, rounds: Int = 3, _ make: @escaping @Sendable () throws -> (Call, Call)) {
      self.init(name, rounds: rounds) { () throws -> Calls in
        let (one, other) = try make()
        return Calls(one: one, other: other)
      }
    }
  }

  /// A call that wakes what waits on a condition, and a wait that only the call can end.
  private static func wake(_ name: String, _ call: @escaping @Sendable (Condition) -> Void) -> Pair {
    Pair("\(name) and a wait", rounds: 2) {
      let lock = FairMutex()
      let condition = Condition(lock)
      return (
        { "\(call(condition))" },
        {
          let looks = Cell(0)
          let end: Void? = try? co_timeout(.seconds(1)) {
            try lock.withLock {
              try condition.wait {
                looks.value += 1
                return looks.value > 1
              }
            }
          }
          return "\(end != nil)"
        }
      )
    }
  }

  static let pairs: [Pair] = [
    Pair("trySend and trySend") {
      let channel = Channel<Int>(1)
      return ({ "\(channel.trySend(1))" }, { "\(channel.trySend(2))" })
    },
    Pair("trySend and tryReceive") {
      let channel = Channel<Int>(1)
      return ({ "\(channel.trySend(1))" }, { "\(channel.tryReceive())" })
    },
    Pair("trySend and receive", rounds: 2) {
      let channel = Channel<Int>(.rendezvous)
      return ({ "\(channel.trySend(1))" }, { "\(String(describing: try? co_timeout(.seconds(1), channel.receive)))" })
    },
    Pair("close and trySend") {
      let channel = Channel<Int>(1)
      return ({ "\(channel.close())" }, { "\(channel.trySend(2))" })
    },
    Pair("cancel and isClosed") {
      let channel = Channel<Int>(1)
      return (
        {
          channel.cancel()
          return ""
        }, { "\(channel.isClosed)" }
      )
    },
    Pair("send and count") {
      let channel = Channel<Int>(1)
      return (
        {
          try channel.send(1)
          return ""
        }, { "\(channel.count)" }
      )
    },
    Pair("tryLock and tryLock") {
      let lock = FairMutex()
      return ({ "\(lock.tryLock())" }, { "\(lock.tryLock())" })
    },
    Pair("withLock and withLockIfFree") {
      let word = ThreadMutex("")
      @Sendable func append(_ letter: String) -> (inout sending String) -> sending String {
        { text in
          text += letter
          return text
        }
      }
      return ({ word.withLock(append("a")) }, { word.withLockIfFree(append("b")) ?? "" })
    },
    Pair("acquire and tryAcquire", rounds: 2) {
      let semaphore = FairSemaphore(1)
      return (
        {
          let end: Void? = try? co_timeout(.seconds(1)) { try semaphore.acquire() }
          return "\(end != nil)"
        }, { "\(semaphore.tryAcquire())" }
      )
    },
    Pair("release and available") {
      let semaphore = FairSemaphore(0, limit: .permits(1))
      return ({ "\(semaphore.release())" }, { "\(semaphore.available)" })
    },
    Pair("tryLockRead and tryLockWrite") {
      let lock = FairReadWriteLock()
      return ({ "\(lock.tryLockRead())" }, { "\(lock.tryLockWrite())" })
    },
    Pair("unlockRead and tryLockWrite") {
      let lock = FairReadWriteLock()
      _ = lock.tryLockRead()
      return ({ "\(lock.unlockRead())" }, { "\(lock.tryLockWrite())" })
    },
    wake("signal") { $0.signal() },
    wake("broadcast") { $0.broadcast() },
    Pair("countDown and isOpen") {
      let latch = Latch(1)
      return ({ "\(latch.countDown())" }, { "\(latch.isOpen)" })
    },
    Pair("tryAcquire of tokens, twice") {
      let limiter = RateLimiter(1)
      return ({ "\(limiter.tryAcquire())" }, { "\(limiter.tryAcquire())" })
    },
    Pair("run and value of a Once") {
      let once = Once<Int>()
      return ({ "\(try once.run { 1 })" }, { "\(String(describing: once.value))" })
    },
    Pair("fulfill and reject") {
      let promise = Promise<Int>()
      return ({ "\(promise.fulfill(1))" }, { "\(promise.reject(CancellationError()))" })
    },
    Pair("fulfill and isSettled") {
      let promise = Promise<Int>()
      return ({ "\(promise.fulfill(1))" }, { "\(promise.isSettled)" })
    },
    Pair("cancel and result") {
      let promise = Promise<Int>()
      return ({ "\(promise.cancel())" }, { "\(promise.result == nil)" })
    },
    Pair("a job's end and isFinished", rounds: 2) {
      let job = co_launch {}
      return (
        {
          try job.join()
          return ""
        }, { "\(job.isFinished)" }
      )
    },
    Pair("follow and fulfill") {
      let promise = Promise<Int>()
      return ({ "\(promise.follow(.value(1)))" }, { "\(promise.fulfill(2))" })
    },
  ]

  /// The results over all schedules of some rounds, each with an object of its own, and the number of the schedules.
  ///
  /// More than one round, because a search also runs the first of the schedules that it then leaves out.
  private func outcomes(_ pair: Pair, _ sharing: Exploration.Sharing) -> (seen: Set<String>, runs: Int) {
    let seen = Mutex<Set<String>>([])
    let found = explore(.exhaustive(preemptions: pair.rounds), sharing: sharing) {
      let rounds = try (0..<pair.rounds).map { _ in try pair.make() }
      let calls = [rounds.flatMap { [$0.first, $0.one].compactMap(\.self) }, rounds.map(\.other)]
      let jobs = calls.map { calls in
        co_launch {
          try calls.map { call in
            let result = try call()
            try co_yield()
            return result
          }
        }
      }
      let results = try jobs.map { try $0.join() } + [try rounds.map { try $0.last() }]
      seen.withLock { _ = $0.insert("\(results)") }
    }
    #expect(found.isComplete)
    return (seen.withLock { $0 }, found.runs)
  }

  @Test(.enabled(if: !isSanitized), arguments: pairs + pairsOfPromises + pairsOfActors + pairsOfWaits)
  func `both orders are tried of two calls that never wait`(pair: Pair) {
    let all = outcomes(pair, .memory)
    let reduced = outcomes(pair, .waits)
    #expect(all.seen.count > 1, "the pair does not show its order: \(all.seen)")
    #expect(reduced.seen == all.seen)
    #expect(reduced.runs <= all.runs)
  }

  @Test(.enabled(if: !isSanitized)) func `calls on distinct objects are not tried in all orders`() {
    func runs(_ sharing: Exploration.Sharing) -> Int {
      let found = explore(.exhaustive(preemptions: .max), sharing: sharing) {
        let jobs = (0..<3).map { _ in
          co_launch {
            let channel = Channel<Int>(.unbounded)
            try channel.send(1)
            _ = channel.trySend(2)
            try channel.send(3)
          }
        }
        for job in jobs { try job.join() }
      }
      #expect(found.isComplete)
      return found.runs
    }
    let (all, reduced) = (runs(.memory), runs(.waits))
    #expect(reduced * 20 <= all, "\(reduced) of \(all)")
  }
}
