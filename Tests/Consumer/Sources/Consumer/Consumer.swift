import Coroutine
import Dispatch
import Foundation

/// Prints lines that scripts/consumer compares with a fixed text.
///
/// Their contents are computed by coroutines: two that each deliver a part of the sum, one that waits for both, one
/// that would wait for an hour and is cancelled, one on the main queue, which a run loop serves, and the README's
/// login, once to its end and once cancelled.
@main
struct Consumer {
  static func main() throws {
    let parts = [20, 22].map { part in
      co_launch(name: "part \(part)") {
        try co_delay(.milliseconds(part))
        return part
      }
    }
    let patient = co_launch(name: "patient") {
      try co_delay(.seconds(3600))
    }
    let sum = co_launch(name: "sum") {
      let total = try co_all(parts).reduce(0, +)
      patient.cancel()
      return total
    }

    let total = try sum.blockingWait()
    do {
      try patient.blockingWait()
      print("consumer: the coroutine that was cancelled ended as if it had not been")
    } catch is CancellationError {
      print("consumer: sum \(total), one cancelled")
    }

    let onMain = co_launch(on: .main, name: "main") {
      let before = Thread.isMainThread
      try co_delay(.milliseconds(10))
      try co_yield()
      return before && Thread.isMainThread
    }
    while !onMain.isFinished, RunLoop.main.run(mode: .default, before: Date(timeIntervalSinceNow: 1)) {}
    print("consumer: the run loop's thread ran the main queue's coroutine: \(try onMain.blockingWait())")

    let server = LoginServer()
    let site = server.address("")
    let avatars = [
      try onThread(site), try co_launch { try co_await { try await inAsyncCode(site) } }.blockingWait(),
      try co_launch { try inCoroutine(site) }.blockingWait(),
    ]
    print("consumer: the login brought \(avatars.map { String(decoding: $0, as: UTF8.self) }.joined(separator: ", "))")
    let slow = login(server.address("/slow"))
    server.slowArrived.wait()
    slow.cancel()
    let isClosed = server.slowClosed.wait(timeout: .now() + 10) == .success
    print("consumer: a cancelled login closed its connection: \(isClosed)")
  }
}
