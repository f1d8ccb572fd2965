import Coroutine
import CoroutineTesting
import Testing

/// What a program with the old names does.
///
/// It is called through a protocol, because a call of a deprecated function is a warning.
private protocol Spelling {
  func name(of error: any Error) -> String
  func errors() -> [any Error]
  func details() -> [String]
}

private struct OldSpelling: Spelling {
  @available(*, deprecated)
  func name(of error: any Error) -> String {
    do { throw error } catch is ChannelClosed {
      return "ChannelClosed"
    } catch let error as MemberFailed<String> {
      return "MemberFailed \(error.key)"
    } catch let error as StashFull {
      return "StashFull \(error.limit)"
    } catch CoroutineError.stackTooLarge {
      return "stackTooLarge"
    } catch {
      switch error {
      case is GeneratorClosed: return "GeneratorClosed"
      case is ActorStopped: return "ActorStopped"
      case is MailboxFull: return "MailboxFull"
      case is ActorNameTaken: return "ActorNameTaken"
      case is LinkedActorEnded: return "LinkedActorEnded"
      case is RestartLimitReached: return "RestartLimitReached"
      case is ResumedTwice: return "ResumedTwice"
      case is AnsweredTwice: return "AnsweredTwice"
      case is ValidationFailed: return "ValidationFailed"
      case is ValueMissing: return "ValueMissing"
      case is ErrorNumber: return "ErrorNumber"
      case is BlockingThreadEnded, is DescriptorWaitFailed, is InvalidCount, is YieldInsideScope:
        return "CoroutineError"
      case is Deadlock, is LeftRunning, is TimeLimitReached, is RealWait, is UnknownHost: return "a world's"
      case is Nondeterminism, is UnreadableToken, is Exploration.Failure: return "an exploration's"
      default: return "unknown"
      }
    }
  }

  @available(*, deprecated)
  func errors() -> [any Error] {
    let end = ActorEnd(id: 1, exit: .stopped)
    return [
      ChannelClosed(cause: nil), GeneratorClosed(), ActorStopped(), MailboxFull(), StashFull(limit: 2),
      ActorNameTaken(name: "a"), LinkedActorEnded(end: end), RestartLimitReached(last: end, limit: RestartLimit()),
      ResumedTwice(late: 1), AnsweredTwice(late: 1), ValidationFailed(value: 1),
      ValueMissing(value: 1, wanted: Int.self),
      ErrorNumber(2), MemberFailed(key: "k", error: CancellationError()),
    ]
  }
}

extension OldSpelling {
  @available(*, deprecated)
  func details() -> [String] {
    let (code, count): (Int32, Int) = (DescriptorWaitFailed(code: 28).code, InvalidCount(count: 3).count)
    let matches = [DescriptorWaitFailed(code: 28) == .cannotWatch, InvalidCount(count: 3) == .invalidCount]
    return ["\(code)", "\(count)", "\(matches)"]
  }
}

@Suite("Programs with the old names of errors")
struct OldErrorTests {
  @Test func `compile, and catch what they caught`() {
    let old: any Spelling = OldSpelling()
    #expect(
      old.errors().map(old.name) == [
        "ChannelClosed", "GeneratorClosed", "ActorStopped", "MailboxFull", "StashFull 2", "ActorNameTaken",
        "LinkedActorEnded", "RestartLimitReached", "ResumedTwice", "AnsweredTwice", "ValidationFailed", "ValueMissing",
        "ErrorNumber", "MemberFailed k",
      ]
    )
    #expect(old.name(of: CoroutineError.stackTooLarge(1 << 30)) == "stackTooLarge")
    #expect(old.name(of: CoroutineError.invalidCount(0)) == "CoroutineError")
    #expect(old.name(of: CancellationError()) == "unknown")
    #expect(old.details() == ["28", "3", "[true, true]"])
    #expect(throws: World.DeadlockError.self) {
      do { try World().run { try co_await(Promise<Void>()) } } catch {
        #expect(old.name(of: error) == "a world's")
        throw error
      }
    }
    #expect(explore(.replay("?")) {}.failure.map(old.name) == "an exploration's")
  }
}
