import Coroutine
import Dispatch
import Testing

@Suite("Stress: programs of channels", .timeLimit(.minutes(10)))
struct ProgramTests {
  private let stress = Stress()

  @Test(arguments: [true, false])
  func `a prime sieve`(onOneQueue: Bool) async throws {
    let count = stress.rounds(300)
    let primes = try await co_launch(on: onOneQueue ? DispatchQueue(label: "sieve") : nil) {
      try co_scope { scope in
        var numbers = Channel<Int>()
        let source = numbers
        scope.launch {
          var value = 2
          while true {
            try source.send(value)
            value += 1
          }
        }
        var primes: [Int] = []
        while primes.count < count {
          let prime = try numbers.receive() ?? 0
          primes.append(prime)
          let (from, to) = (numbers, Channel<Int>())
          scope.launch { try from.forEach { if $0 % prime != 0 { try to.send($0) } } }
          numbers = to
        }
        scope.cancel()
        return primes
      }
    }.value
    let expected = (2...).lazy.filter { number in !(2..<number).contains { $0 * $0 <= number && number % $0 == 0 } }
    #expect(primes == Array(expected.prefix(count)))
  }

  @Test(arguments: [0, 1, 16])
  func `a bounded buffer between producers and consumers`(capacity: Int) async throws {
    let each = stress.rounds(20_000)
    let buffer = Channel<Int>(.bounded(capacity))
    let queue = DispatchQueue(label: "buffer")
    let producers = (0..<4).map { producer in
      co_launch(on: producer == 0 ? queue : nil) { for value in 0..<each { try buffer.send(value * 4 + producer) } }
    }
    let consumers = (0..<3).map { consumer in
      co_launch(on: consumer == 0 ? queue : nil) {
        var received: [Int] = []
        while let value = try buffer.receive() { received.append(value) }
        return received
      }
    }
    for producer in producers { try await producer.value }
    buffer.close()
    var all: [Int] = []
    for consumer in consumers {
      let values = try await consumer.value
      // The values of one producer arrive in its order.
      for producer in 0..<4 {
        let own = values.filter { $0 % 4 == producer }
        #expect(own == own.sorted())
      }
      all += values
    }
    #expect(all.sorted() == Array(0..<(4 * each)))
  }

  /// A fork is a value in a channel; a philosopher with two forks eats.
  ///
  /// The last philosopher takes them in the other order.
  @Test func `dining philosophers`() async throws {
    let (seats, meals) = (5, stress.rounds(5_000))
    let forks = (0..<seats).map { number in
      let fork = Channel<Int>(1)
      _ = fork.trySend(number)
      return fork
    }
    let inUse = (0..<seats).map { _ in Total() }
    let philosophers = (0..<seats).map { seat in
      co_launch(on: seat < 2 ? DispatchQueue(label: "seat.\(seat)") : nil) {
        let (first, second) = seat == seats - 1 ? (0, seat) : (seat, (seat + 1) % seats)
        for _ in 0..<meals {
          let (one, other) = (try forks[first].receive() ?? -1, try forks[second].receive() ?? -1)
          for fork in [one, other] {
            inUse[fork].add(1)
            #expect(inUse[fork].value == 1)
          }
          for fork in [one, other] { inUse[fork].add(-1) }
          try forks[first].send(one)
          try forks[second].send(other)
        }
      }
    }
    for philosopher in philosophers { try await philosopher.value }
    #expect(forks.map(\.count) == Array(repeating: 1, count: seats))
  }

  /// Requests go to workers with a channel for the answer; some workers never answer, and the caller times out.
  @Test func `a fan-out of requests with timeouts`() async throws {
    struct Request: Sendable {
      let number: Int
      let answer: Channel<Int>
    }
    let count = stress.rounds(2_000)
    let requests = Channel<Request>(8)
    let workers = (0..<4).map { _ in
      co_launch {
        try requests.forEach { request in
          if request.number % 10 != 0 { _ = request.answer.trySend(request.number * 2) }
        }
      }
    }
    let outcomes = try await co_launch(on: DispatchQueue(label: "callers")) {
      try co_scope { scope in
        let jobs = (0..<count).map { number in
          scope.launch { () throws -> Int in
            let answer = Channel<Int>(1)
            try requests.send(Request(number: number, answer: answer))
            return try co_select {
              answer.onReceive { $0 ?? -1 }
              SelectCase.onTimeout(number % 10 == 0 ? .milliseconds(1) : .seconds(120)) { -2 }
            }
          }
        }
        return try jobs.map { try $0.join() }
      }
    }.value
    requests.close()
    for worker in workers { try await worker.value }
    #expect(outcomes == (0..<count).map { $0 % 10 == 0 ? -2 : $0 * 2 })
  }
}
