internal import CCoroutine
import Synchronization

// What the shipped files about jobs name, as far as the models need it.

/// A job whose first piece and cancellation are the model's.
@usableFromInline
final class AnyJob {
  // The first property: `JobRef.handle` finds the object by its record's address.
  private var recordStorage: JobRecord
  let completion = Completion()
  private let move = SpinLock()
  /// A virtual thread is the job's stack, so no drain resumes it.
  var isThread = false
  /// Open while such a job is parked.
  let parked = Gate()
  /// Opened by who resumes the job, where a virtual thread is its stack.
  let resumed = Gate()
  var outlastsInspections = true
  /// Called on such a job's thread when it has parked.
  var left: () -> Void = {}
  /// Whether the stack is switched out.
  let switchedOut = Atomic<Bool>(false)
  /// What the job does on its stack until it first parks.
  var firstPiece: () -> Void = {}
  /// Somebody looks at the job's frames: called where `cancelScopes` is.
  var look: () -> Void = {}

  init(on scheduler: Scheduler) {
    let site = LaunchSite(file: #fileID, line: #line)
    recordStorage = JobRecord(scheduler: .passUnretained(scheduler), stack: StackSize(), launchSite: site)
    checkAddress(record, of: &recordStorage)
  }

  var record: JobRef { propertyAddress(in: self, at: 0, as: JobRecord.self) }

  /// Writes into the context whose it is, for `cco_is_parked`, which knows the context alone.
  func nameContext() {
    record.pointee.context.unsafelyUnwrapped.pointee.parked.stack = Unmanaged.passUnretained(self).toOpaque()
  }

  func withMove<Output>(_ body: () -> Output) -> Output { move.withLock(body) }

  static func fail(_ job: JobRef, _ error: any Error) { fatalError("\(error)") }

  final class Completion {
    var isSettled = false
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  @usableFromInline
  var handle: Unmanaged<AnyJob> { object(holding: UnsafeRawPointer(self), at: 0) }

  func cancelScopes() { scopesToCancel().cancel() }

  func scopesToCancel() -> [ScopeToCancel] {
    handle._withUnsafeGuaranteedRef { $0.look() }
    return []
  }

  var isCancellationVisible: Bool { cancellation() != nil }

  func outlastInspection() {
    if !handle._withUnsafeGuaranteedRef({ $0.outlastsInspections }) { return }
    guard hold.isInspected else { return }
    // No model has more than one inspection at a time.
    Explorer.current.unsafelyUnwrapped.waitUntilZero(pointee.flags.byte(2))
  }

  func moveDeadlines(to destination: Scheduler) {}

  @usableFromInline
  func cancellation() -> (any Error)? {
    let flags = pointee.flags.now
    return flags & JobFlags.needsCancellationCheck != 0 && flags & JobFlags.shielded == 0 ? CancellationError() : nil
  }

  func withShield<Output>(_ body: () throws -> Output) rethrows -> Output {
    pointee.flags.bitwiseOr(JobFlags.shielded, ordering: .acquiringAndReleasing)
    defer { pointee.flags.bitwiseAnd(~JobFlags.shielded, ordering: .acquiringAndReleasing) }
    return try body()
  }
}

@usableFromInline
struct StackSize {
  @usableFromInline var byteCount: Int { 1 }
  static var standard: Self { Self() }
}

@usableFromInline struct CancelFrame {}
/// No model has scopes.
struct ScopeToCancel {}
extension [ScopeToCancel] {
  func cancel() {}
}
@usableFromInline final class LocalBinding {}
@usableFromInline final class CancelReason {}

enum CoroutineError: Error {}

enum ForkedChild {
  static func useThreads() {}
  static func mayGoOn() {}
}

enum Clock {
  static var now: UInt64 { 0 }
}

/// What a lock says of itself to dumps.
protocol Inspectable: AnyObject {}

enum StackRunner {
  static func make(for _: JobRef) -> Result<UnsafeMutablePointer<cco_context>, CoroutineError> {
    let size = MemoryLayout<cco_context>.size
    let context = UnsafeMutableRawPointer.allocate(byteCount: size, alignment: MemoryLayout<cco_context>.alignment)
    context.initializeMemory(as: UInt8.self, repeating: 0, count: size)
    return .success(context.assumingMemoryBound(to: cco_context.self))
  }

  static func free(_ stack: UnsafeMutablePointer<cco_context>) { stack.deallocate() }
}
