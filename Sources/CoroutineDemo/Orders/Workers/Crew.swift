#if Demo
import Coroutine

/// A worker has ended by itself, which none should.
struct WorkerFailure: Error, CustomStringConvertible {
  var number: Int
  var status: Int32
  var description: String { "worker \(number) has ended with status \(status)" }
}

/// The worker processes; a killed one is replaced by another of the same number.
///
/// `state` is owned by its lock. One coroutine at a time starts and kills; any may look.
final class Crew: Sendable {
  struct State: Sendable {
    var workers: [WorkerProcess] = []
    var kills = 0
  }

  private let size: Int
  private let address: String
  private let schema: String
  private let state = Locked(State())
  private let failures = Channel<WorkerFailure>(.unbounded)

  init(size: Int, address: String, schema: String) {
    (self.size, self.address, self.schema) = (size, address, schema)
  }

  /// How many were killed so far.
  var kills: Int { state.withLock { $0.kills } }
  /// The numbers of the processes.
  var processes: [Int32] { state.withLock { $0.workers.map(\.id) } }

  func start() throws {
    for number in 1...size {
      let worker = try makeWorker(number)
      state.withLock { $0.workers.append(worker) }
    }
  }

  /// Suspends until a worker ends by itself, and throws its failure.
  func watch() throws {
    if let failure = try failures.receive() { throw failure }
  }

  /// Kills one at random, and starts another in its place.
  func killOne() throws {
    let index = Int.random(in: 0..<size)
    let worker = state.withLock { $0.workers[index] }
    try worker.kill()
    let next = try makeWorker(worker.number)
    state.withLock { state in
      state.workers[index] = next
      state.kills += 1
    }
  }

  /// Ends all, and suspends until they have ended.
  func stop() {
    let workers = state.withLock { state in
      defer { state.workers = [] }
      return state.workers
    }
    for worker in workers { worker.stop() }
  }

  /// Starting a process blocks, for as long as the kernel takes.
  private func makeWorker(_ number: Int) throws -> WorkerProcess {
    try co_shield {
      try co_blocking { [address, schema, failures] in
        try WorkerProcess(number, address: address, schema: schema) { status in
          _ = failures.trySend(WorkerFailure(number: number, status: status))
        }
      }
    }
  }
}
#endif
