import Dispatch
import Harness

// The workloads in Swift Concurrency: "swift/<row> <TAB> best <TAB> median". Built and run by Benchmarks/run.

@main
struct SwiftPeer {
  static func main() throws {
    let options = Options.parse()
    var suite = Suite(options, owner: "swift")
    addTasks(to: &suite)
    addSequences(to: &suite)
    addParked(to: &suite)
    try Runner(options).run(suite, heading: Machine.description)
  }
}

/// Runs `body` as a task and blocks the calling thread, which is none of the pool's, until it has ended.
func inTask<Output: Sendable>(_ body: @escaping @Sendable () async throws -> Output) throws -> Output {
  let done = DispatchSemaphore(value: 0)
  nonisolated(unsafe) var result: Swift.Result<Output, any Error>?  // Sound because it is read after the signal.
  Task.detached {
    do { result = .success(try await body()) } catch { result = .failure(error) }
    done.signal()
  }
  done.wait()
  return try result!.get()
}
