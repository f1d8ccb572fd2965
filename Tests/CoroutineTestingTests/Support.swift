import Dispatch
import Glibc
import Synchronization

/// Lines in the order of writing.
final class Log: Sendable {
  private let written = Mutex<[String]>([])
  func callAsFunction(_ line: String) { written.withLock { $0.append(line) } }
  var lines: [String] { written.withLock { $0 } }
}

final class Flag: Sendable {
  private let value = Atomic(false)
  var isSet: Bool { value.load(ordering: .relaxed) }
  func set(_ new: Bool = true) { value.store(new, ordering: .relaxed) }
}

/// Whether a sanitizer is linked in.
///
/// A long search takes minutes then, and runs no code that shorter ones do not run.
let isSanitized = dlsym(nil, "__asan_init") != nil || dlsym(nil, "__tsan_init") != nil

final class Counter: Sendable {
  private let value = Atomic(0)
  func next() -> Int { value.wrappingAdd(1, ordering: .relaxed).newValue }
}

/// Runs `body` on a thread that is not one of Swift's pool: a world that waits for a Task blocks its thread.
@discardableResult
func onOwnThread<Output: Sendable>(_ body: @escaping @Sendable () throws -> Output) async throws -> Output {
  try await withCheckedThrowingContinuation { (continuation: CheckedContinuation<Output, any Error>) in
    DispatchQueue(label: "own thread").async { continuation.resume(with: Result { try body() }) }
  }
}
