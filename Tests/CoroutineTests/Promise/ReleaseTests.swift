import Coroutine
import CoroutineTesting
import Dispatch
import Glibc
import Testing

/// A promise releases its memory after its use, however long other promises live.
@Suite("Promise: released references", .timeLimit(.minutes(10)))
struct ReleaseTests {
  @Test func `a derived promise that also followed is released when its own upstream has won`() async {
    let (other, upstream) = (Promise<Int>(), Promise<Int>())
    weak var dropped: Promise<Int>?
    do {
      let link = upstream.recover { _ -> Int in fatalError("There is no failure.") }
      dropped = link
      link.follow(other)
      upstream.fulfill(1)
      #expect(link.isFulfilled)
    }
    #expect(dropped == nil)
    // Only this promise waits for it.
    other.then { $0 }.cancel()
    #expect(other.isRejected)
  }

  @Test func `a promise that also follows a long-lived one leaves it when it is settled directly or cancelled`() {
    let (other, upstream) = (Promise<Int>(), Promise<Int>())
    let consumer = other.then { $0 }
    for _ in 0..<2 {
      weak var dropped: Promise<Int>?
      do {
        let link = upstream.then { $0 }
        dropped = link
        link.follow(other)
        link.cancel()
      }
      #expect(dropped == nil)
    }
    #expect(upstream.isRejected && other.isPending)
    consumer.cancel()
    #expect(other.isRejected)
  }

  @Test(.inWorlds, arguments: [false, true])
  func `a bounded all and a retry release their bodies when cancelled, even if the work is kept elsewhere`(
    isRetry: Bool
  ) throws {
    let (work, released) = (Promise<Int>(), Gate())
    let consumer = work.then { $0 }
    Self.startAndCancel(isRetry, work, Tracked { released.open() })
    try released.pass()
    #expect(work.isPending && consumer.isPending)
    work.fulfill(1)
  }

  private static func startAndCancel(_ isRetry: Bool, _ work: Promise<Int>, _ held: Tracked) {
    let body: @Sendable (Int) -> Promise<Int> = { _ in
      held.use()
      return work
    }
    if isRetry {
      Promise<Int>.retry(attempts: 3, body).cancel()
    } else {
      Promise<Int>.all(of: 0..<3, concurrently: 2, body).cancel()
    }
  }

  // The sanitizers keep freed memory for a while.
  @Test(.enabled(if: !isSanitized))
  func `a hundred thousand failed attempts of a retry take no more memory than a thousand`() async {
    await #expect(processExitsWith: .success) {
      let samples = Locked<[Int]>([])
      let result = Promise<Int>.retry(attempts: .max, on: DispatchQueue(label: "attempts")) { attempt in
        if attempt == 1000 || attempt == 100_000 { samples.withLock { $0.append(Self.residentBytes) } }
        return attempt < 100_000 ? .failure(Oops("\(attempt)")) : .value(attempt)
      }
      let value = try await result.value
      let growth = samples.current[1] - samples.current[0]
      // One object per attempt would be thirty megabytes.
      precondition(value == 100_000 && growth < 4_000_000, "\(value) attempts took \(growth) bytes")
    }
  }

  private static var residentBytes: Int {
    guard let file = fopen("/proc/self/statm", "r") else { return 0 }
    defer { fclose(file) }
    var (size, resident) = (0, 0)
    withUnsafeMutablePointer(to: &size) { size in
      withUnsafeMutablePointer(to: &resident) { resident in
        _ = withVaList([size, resident]) { vfscanf(file, "%ld %ld", $0) }
      }
    }
    return resident * Int(sysconf(Int32(_SC_PAGESIZE)))
  }

  @Test(.simulated(.random(seeds: 3))) func `a retry keeps one attempt at a time`() throws {
    let (now, most) = (Locked(0), Locked(0))
    let result = Promise<Int>.retry(attempts: 1000, delay: Backoff { $0 % 100 == 0 ? .seconds(1) : .zero }) {
      attempt in
      let count = now.withLock { (value: inout Int) -> Int in
        value += 1
        return value
      }
      most.withLock { $0 = max($0, count) }
      let held = Tracked { now.withLock { $0 -= 1 } }
      return Promise.value(held).then { held -> Int in
        held.use()
        guard attempt == 1000 else { throw Oops("\(attempt)") }
        return attempt
      }
    }
    #expect(try co_await(result) == 1000)
    #expect(worldTime == .seconds(9))
    #expect(most.current <= 3, "\(most.current) at once")
  }
}
