import Synchronization

// Phase 3 of the search for deadlocks (Deadlocks.swift): whether a job is still in its wait, and no timer can end that.
//
// A deadline ends the waits inside it unless a shield hides it, and so the waits of the children of each scope inside
// it. So the frames of three kinds of jobs are read, each from the innermost one outwards, up to a shield:
//
//   the job itself
//   the joiner of the scope that it runs in, from the scope's frame on; all frames once the scope's frame is left
//   the joiner of the scope that this one runs in, and so on
//
// Frames lie on the job's stack. They may be read by the holder of a parked job (JobHold.swift), and by the job itself:
// the search may be made by a coroutine in whose scope the circle is. The frames of a job that runs elsewhere cannot be
// read; then a deadline is assumed. The scope of a held job is alive, because the job has not ended.

struct DeadlockProof {
  /// What surrounds a wait.
  fileprivate enum Surroundings {
    /// A deadline that will pass, or a cancellation that is on its way.
    case ends
    /// A shield, or the end of the chain with no scope around the job.
    case lasts
    /// The job runs in a scope of this one, outside of which deadlines count as well.
    case scope(any EnclosingScope)
  }

  private struct Key: Hashable {
    let joiner: ObjectIdentifier
    let scope: ObjectIdentifier
  }

  /// Whether the chain outside of a scope has no end, as far as it is known.
  private var known: [Key: Bool] = [:]

  /// Whether the job is in its wait, which no timer, and no cancellation that has been requested, will end.
  mutating func holds(for single: DeadlockSearch.Waiting) -> Bool {
    guard single.isOwedByActor else { return false }
    guard let surroundings = held(single.job, since: single.word, { $0.surroundings(from: $0.pointee.frames) }) else {
      return false
    }
    return lasts(surroundings)
  }

  private mutating func lasts(_ first: Surroundings) -> Bool {
    var passed: [Key] = []
    var result: Bool?
    var next = first
    while result == nil {
      switch next {
      case .ends: result = false
      case .lasts: result = true
      case .scope(let scope):
        // A scope that has ended meanwhile: the job has moved.
        guard !scope.isAboutToCancel, let joiner = scope.joiner else {
          result = false
          break
        }
        let key = Key(joiner: ObjectIdentifier(joiner), scope: ObjectIdentifier(scope))
        if let known = known[key] {
          result = known
          break
        }
        passed.append(key)
        let address = UnsafeRawPointer(Unmanaged.passUnretained(scope as AnyObject).toOpaque())
        next = held(joiner, since: nil) { $0.surroundings(from: $0.frames(outside: address)) } ?? .ends
      }
    }
    for key in passed { known[key] = result }
    return result ?? false
  }

  /// Calls `body` while the job cannot be resumed, or is the one that calls; nil if that is not possible.
  private func held(
    _ job: AnyJob,
    since word: UInt64?,
    _ body: (JobRef) -> Surroundings
  ) -> Surroundings? {
    let record = job.record
    if Carrier.current?.pointee.job == record { return word == nil ? body(record) : nil }
    guard let epoch = record.hold.tryTake() else { return nil }
    defer { record.hold.release() }
    return word == nil || epoch.word == word ? body(record) : nil
  }
}

extension DeadlockSearch.Waiting {
  /// Whether an ask has not been delegated since phase 2; true for other waits.
  fileprivate var isOwedByActor: Bool {
    guard kind == .answer else { return true }
    let actor = Inspection.source(of: job.record, word, at: source) as? any OwnedSource
    return actor?.owners(awaitedBy: job.record) != nil
  }
}

// Called where `cancellation` may be called.
extension UnsafeMutablePointer where Pointee == JobRecord {
  /// What surrounds the job from `frame` outwards.
  fileprivate func surroundings(from first: UnsafeMutablePointer<CancelFrame>?) -> DeadlockProof.Surroundings {
    if isCancellationVisible { return .ends }
    var frame = first
    while let current = frame {
      switch current.pointee.kind {
      case .shield: return .lasts
      case .deadline: if current.pointee.mayPass { return .ends }
      case .scope, .bound: break
      }
      frame = current.pointee.outer
    }
    return handle._withUnsafeGuaranteedRef { $0.enclosingAny }.map { .scope($0) } ?? .lasts
  }

  /// The frames outside of that of a scope, or all of them if its frame has been left.
  fileprivate func frames(outside scope: UnsafeRawPointer) -> UnsafeMutablePointer<CancelFrame>? {
    var frame = pointee.frames
    while let current = frame {
      frame = current.pointee.outer
      if current.pointee.owner?.object == scope { return frame }
    }
    return pointee.frames
  }
}

extension CancelFrame {
  /// Whether it is a deadline that some clock reaches.
  fileprivate var mayPass: Bool { timer.map { $0.node.pointee.deadline != Duration.never } ?? true }
}
