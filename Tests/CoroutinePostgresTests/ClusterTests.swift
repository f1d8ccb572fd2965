#if Postgres
import Coroutine
import Foundation
import Testing

/// The servers of the tests and of the demo: none is left when the process that has started it dies.
@Suite(.timeLimit(.minutes(10)))
struct ClusterTests {
  /// What the process has printed: the folder, and the number of the server's process.
  private func lines(_ output: [UInt8]?) throws -> [String] {
    let text = String(decoding: try #require(output), as: UTF8.self)
    return text.split(separator: "\n").filter { $0.hasPrefix("cluster ") }.map { String($0.dropFirst(8)) }
  }

  private func untilRemoved(_ folder: String) async throws {
    try await co_launch {
      while FileManager.default.fileExists(atPath: folder) { try co_delay(.milliseconds(5)) }
    }.value
  }

  @Test func `a process that dies while its server starts leaves none behind`() async throws {
    let result = try #require(
      await #expect(processExitsWith: .signal(SIGKILL), observing: [\.standardOutputContent]) {
        let cluster = try Cluster()
        cluster.stop("immediate")
        print("cluster \(cluster.folder)")
        fflush(nil)
        // Dies when the server runs, and before it is ready; if the thread comes late, a moment after that.
        Thread.detachNewThread {
          while cluster.postmaster == .max {}
          kill(getpid(), SIGKILL)
        }
        try cluster.start()
        while true { pause() }
      }
    )
    // The folder goes last.
    try await untilRemoved(try #require(try lines(result.standardOutputContent).first))
  }

  @Test func `a process that dies while its server is stopped leaves none behind`() async throws {
    let result = try #require(
      await #expect(processExitsWith: .signal(SIGKILL), observing: [\.standardOutputContent]) {
        let cluster = try Cluster()
        let server = cluster.postmaster
        // The number of no process would be gone, whatever happens.
        try #require(server != .max)
        print("cluster \(cluster.folder)\ncluster \(server)")
        fflush(nil)
        kill(server, SIGSTOP)
        kill(getpid(), SIGKILL)
      }
    )
    let printed = try lines(result.standardOutputContent)
    try await untilRemoved(try #require(printed.first))
    #expect(kill(try #require(printed.last.flatMap { Int32($0) }), 0) == -1)
  }

  @Test func `a server that does not start is an error that says why`() {
    #expect {
      try Cluster(settings: ["no_such_setting=1"])
    } throws: { "\($0)".contains("no_such_setting") }
  }
}
#endif
