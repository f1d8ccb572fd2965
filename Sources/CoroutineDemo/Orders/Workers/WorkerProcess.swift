#if Demo
import Coroutine
import Foundation

/// A worker in a process of its own: this program, started once more.
///
/// Its standard input is a pipe to which nothing is written. The pipe ends when this process ends, whatever its end,
/// and a worker ends when its input does. So no worker is left behind.
final class WorkerProcess: Sendable {
  let number: Int
  private let process = Process()
  private let input = Pipe()
  private let ended = Promise<Void>()
  /// Whether its end is wanted.
  private let isOver = Locked(false)

  /// Starts it; `onFailure` is told its status if it ends by itself.
  init(_ number: Int, address: String, schema: String, onFailure: @escaping @Sendable (Int32) -> Void) throws {
    self.number = number
    process.executableURL = URL(filePath: try FileManager.default.destinationOfSymbolicLink(atPath: "/proc/self/exe"))
    process.arguments = ["orders-worker", "--database", address, "--schema", schema, "--number", "\(number)"]
    process.standardInput = input
    process.standardOutput = FileHandle.nullDevice
    process.terminationHandler = { [isOver, ended] process in
      if !isOver.withLock({ $0 }) { onFailure(process.terminationStatus) }
      ended.fulfill(())
    }
    try process.run()
  }

  var id: Int32 { process.processIdentifier }

  /// Kills it, and suspends until it has ended.
  func kill() throws {
    isOver.withLock { $0 = true }
    Foundation.kill(id, SIGKILL)
    try co_await(ended)
  }

  /// Lets it end by itself, and kills it if it does not.
  func stop() {
    isOver.withLock { $0 = true }
    try? input.fileHandleForWriting.close()
    do { try co_timeout(.seconds(3)) { try co_await(ended) } } catch { try? kill() }
  }
}
#endif
