import Coroutine
import Dispatch
import Testing

/// Rings of flights and Onces whose waits begin at the same time, on several threads.
@Suite("Stress: circles of flights", .timeLimit(.minutes(10)))
struct FlightCircleStressTests {
  @Test func `exactly one wait of a ring is refused, and none hangs`() async throws {
    let stress = Stress()
    for round in 0..<stress.rounds(400) {
      var random = stress.random(round)
      let kinds = (0..<Int.random(in: 2...5, using: &random)).map { _ in Bool.random(using: &random) }
      let isByChild = Bool.random(using: &random)
      let places = queues(2).map(Optional.some) + [nil, nil]
      let (flights, onces) = (SingleFlight<Int, Int>(), kinds.map { _ in Once<Int>() })
      let (running, refused) = (Latch(kinds.count), Census())
      @Sendable func run(_ index: Int, _ body: @escaping @Sendable () throws -> Int) throws -> Int {
        kinds[index] ? try flights.run(index, body) : try onces[index].run(body)
      }
      let jobs = kinds.indices.map { index in
        co_launch(on: places[index % places.count]) {
          do {
            return try run(index) {
              running.countDown()
              try running.wait()
              let wait: @Sendable () throws -> Int = {
                do { return try run((index + 1) % kinds.count) { 0 } } catch {
                  if case CoroutineError.wouldDeadlock = error { refused.change() }
                  throw Mark(number: round)
                }
              }
              return isByChild ? try co_launch(wait).join() : try wait()
            }
          } catch is CoroutineError {
            // The join of the child was the wait that would have closed the circle.
            refused.change()
            return -1
          } catch { return -1 }
        }
      }
      // Who waits for a flight gets its error; who waits for a Once runs its own body then, which waits for nothing.
      let ends = kinds.contains(false) ? [-1, 0] : [-1]
      for job in jobs {
        let end = try await job.value
        #expect(ends.contains(end), "\(kinds) \(stress.replay)")
      }
      if isByChild {
        #expect(refused.now > 0, "\(stress.replay)")
      } else {
        #expect(refused.now == 1, "\(kinds) \(stress.replay)")
      }
      let value = try await co_launch { try flights.run(0) { 7 } }.value
      #expect(value == 7)
    }
  }

  /// Flights wait for flights with larger keys only.
  @Test func `waits without a circle are never refused`() async throws {
    let stress = Stress()
    for round in 0..<stress.rounds(40) {
      let flights = SingleFlight<Int, Int>()
      @Sendable func fly(_ key: Int) throws -> Int {
        try flights.run(key) {
          if key % 3 == 0 { try co_yield() }
          guard key < 12 else { return 1 }
          return try co_scope { scope in
            let jobs = [key + 1, key + 2].map { next in scope.launch { try fly(next) } }
            return try jobs.reduce(0) { try $0 + $1.join() }
          }
        }
      }
      let jobs = (0..<12).map { index in
        co_launch {
          var random = stress.random(round << 8 | index)
          for _ in 0..<10 {
            let key = Int(random.next() % 12)
            do {
              _ = try co_timeout(random.next() % 4 == 0 ? .microseconds(200) : .seconds(600)) { try fly(key) }
            } catch is TimeoutError {}
          }
        }
      }
      for job in jobs {
        await #expect(throws: Never.self, "\(stress.replay)") { try await job.value }
      }
    }
  }
}
