#if Demo
import FlyingFox
import Foundation
import Testing

@testable import CoroutineDemo

/// The program as a process, with its outputs and its exit code.
@Suite(.timeLimit(.minutes(10))) struct `CoroutineDemo login` {
  private static let styles = ["coroutine", "callbacks"]

  @Test(arguments: styles)
  func `logs in and describes both pictures to a pipe`(style: String) async throws {
    let end = try await DemoProcess.run(["login", "--style", style])
    #expect(end.status == 0)
    #expect(end.output == (try Self.expectedCard("ada")))
    #expect(end.cleanups == 1)
    let steps = end.errors.split(separator: "\n").map { $0.prefix { $0 != ":" } }
    #expect(
      steps == ["login", "login", "profile", "profile", "avatar", "avatar", "effect", "effect", "Cleaned up"]
    )
    #expect(end.errors.hasSuffix("Cleaned up: no request in flight, built-in server stopped.\n"))
  }

  @Test func `another account has another face`() async throws {
    let end = try await DemoProcess.run(["login", "--account", "grace", "--password", "hopper"])
    #expect(end.status == 0)
    #expect(end.output == (try Self.expectedCard("grace")))
  }

  @Test(arguments: [("login", 11), ("profile", 12), ("avatar", 13), ("effect", 14)], styles)
  func `a step that fails is named, and nothing after it is begun`(
    fault: (step: String, code: Int32),
    style: String
  ) async throws {
    let end = try await DemoProcess.run(["login", "--fail-at", fault.step, "--style", style])
    let step = try #require(LoginStep(rawValue: fault.step))
    #expect(end.status == fault.code)
    #expect(end.output.isEmpty)
    #expect(end.cleanups == 1)
    #expect(end.errors.contains("\n\(step.name): failed\n"))
    let sentence = try #require(end.errors.split(separator: "\n").last)
    #expect(sentence.hasPrefix("CoroutineDemo: \(step.title) failed: "))
    #expect(sentence.contains(step == .effect ? "the PNG is damaged" : "answered 503: out of order"))
    for later in LoginStep.allCases where later.number > step.number {
      #expect(!end.errors.contains("\n\(later.name): "))
    }
  }

  @Test(arguments: [["--password", "wrong"], ["--account", "eve"], ["--account", "eve", "--password", "lovelace"]])
  func `wrong credentials are a failed login`(arguments: [String]) async throws {
    let end = try await DemoProcess.run(["login"] + arguments)
    #expect(end.status == 11)
    #expect(end.errors.contains("CoroutineDemo: Logging in failed: http://127.0.0.1:"))
    #expect(end.errors.contains("/login answered 401: wrong account or password.\n"))
    #expect(end.cleanups == 1)
  }

  @Test(arguments: styles)
  func `a site that nobody answers at is named`(style: String) async throws {
    let port = try SilentPort()
    let site = "http://127.0.0.1:\(port.number)"
    let end = try await DemoProcess.run(["login", "--site", site, "--password", "x", "--style", style])
    withExtendedLifetime(port) {}
    #expect(end.status == 69)
    #expect(end.errors.contains("CoroutineDemo: Logging in failed: \(site)/login cannot be reached: "))
    #expect(end.errors.contains("\nCleaned up: no request in flight.\n"))
  }

  @Test(arguments: [
    (["--site", "example.org"], "'example.org' is no site's address"),
    (["--site", "ftp://example.org"], "'ftp://example.org' is no site's address"),
    (["--fail-at", "lunch"], "'lunch' is invalid for '--fail-at"),
    (["--latency", "-1"], "--latency is a number of milliseconds from 0 to 3600000, not -1"),
    (["--latency", "soon"], "'soon' is invalid for '--latency"),
    (["--timeout", "0"], "--timeout is a number of seconds above 0"),
    (["--timeout", "nan"], "--timeout is a number of seconds above 0"),
    (["--site", "http://localhost", "--fail-at", "login"], "cannot be used with --site"),
    (["--style", "goto"], "'goto' is invalid for '--style"),
  ])
  func `a bad argument is a usage error that names it`(arguments: [String], sentence: String) async throws {
    let end = try await DemoProcess.run(["login"] + arguments)
    #expect(end.status == 64)
    #expect(end.errors.hasPrefix("Error: "))
    #expect(end.errors.contains(sentence), "\(end.errors)")
    #expect(end.cleanups == 0)
  }

  @Test(arguments: [(SIGINT, Int32(130)), (SIGTERM, Int32(143))], styles)
  func `a signal cancels the request under way and cleans up`(
    signal: (number: Int32, code: Int32),
    style: String
  ) async throws {
    let demo = try DemoProcess(["login", "--latency", "600000", "--timeout", "600", "--style", style])
    try await demo.says("login: Logging in\n")
    demo.send(signal.number)
    let end = await demo.end()
    #expect(end.status == signal.code)
    #expect(end.output.isEmpty)
    #expect(
      end.errors == """
        login: Logging in
        Interrupted: cancelling.
        login: stopped
        Cleaned up: no request in flight, built-in server stopped.
        CoroutineDemo: interrupted.

        """
    )
  }

  @Test(arguments: styles)
  func `time that is not enough is said, with the step that it ran out in`(style: String) async throws {
    // Enough to begin to log in, on a machine that others use too.
    let end = try await DemoProcess.run(["login", "--latency", "600000", "--timeout", "6.5", "--style", style])
    #expect(end.status == 124)
    #expect(
      end.errors.hasSuffix(
        "CoroutineDemo: timed out while logging in: 6.5 s were not enough. Give more with --timeout.\n"
      )
    )
    #expect(end.errors.contains("\nlogin: stopped\n"))
    #expect(end.cleanups == 1)
  }

  @Test(arguments: styles)
  func `a result that cannot be written is the last step's failure`(style: String) async throws {
    let full = try #require(FileHandle(forWritingAtPath: "/dev/full"))
    let end = try await DemoProcess.run(["login", "--style", style], output: full)
    #expect(end.status == 15)
    #expect(
      end.errors.hasSuffix(
        "CoroutineDemo: Showing the result failed: cannot write to standard output: No space left on device.\n"
      )
    )
    #expect(end.cleanups == 1)
  }

  @Test func `a proxy in the environment is not asked for the built-in server`() async throws {
    let port = try SilentPort()
    let proxy = "http://127.0.0.1:\(port.number)"
    let end = try await DemoProcess.run(["login"], environment: ["http_proxy": proxy, "NO_PROXY": "example.org"])
    withExtendedLifetime(port) {}
    #expect(end.status == 0, "\(end.errors)")
  }

  @Test func `another site is logged in to`() async throws {
    // On a crowded machine an answer may take longer than its usual minute.
    let server = try await LoopbackServer.start(timeout: 3600) { await LoginRoutes(Misbehaviour()).add(to: $0) }
    let end = try await DemoProcess.run(
      ["login", "--site", server.url.absoluteString, "--account", "alan", "--password", "turing"])
    await server.stop()
    #expect(end.status == 0)
    #expect(end.output == (try Self.expectedCard("alan")))
    #expect(end.errors.hasSuffix("Cleaned up: no request in flight.\n"))
  }

  @Test(arguments: [
    ("no json", 11, "/login answered nonsense: the JSON of Token was expected"),
    (
      #"{"token":"t","account":"a","name":"n","title":"t","avatar":"gopher://x"}"#, 13,
      "the avatar's address is 'gopher://x'"
    ),
    (#"{"token":"t","account":"a","name":"n","title":"t","avatar":"login"}"#, 14, "this is no readable PNG"),
  ])
  func `a site that answers nonsense is the failure of the step that meets it`(
    answer: String,
    code: Int32,
    sentence: String
  ) async throws {
    let server = try await TestServer { _ in HTTPResponse(statusCode: .ok, body: Data(answer.utf8)) }
    let end = try await DemoProcess.run(["login", "--site", server.url.absoluteString])
    await server.stop()
    #expect(end.status == code)
    #expect(end.errors.contains(sentence), "\(end.errors)")
    #expect(end.cleanups == 1)
  }

  /// The expected text in a pipe, made without server, request or process.
  private static func expectedCard(_ account: String) throws -> String {
    let member = try #require(Member.named(account))
    let art = try Artwork(png: member.portrait.image(side: LoginRoutes.avatarSide).pngData())
    let profile = Profile(account: account, name: member.name, title: member.title, avatar: "")
    let text = Card(profile: profile, art: art).text(on: .text, columns: 80, rows: 24)
    #expect(text.contains(art.after.checksum))
    return text
  }
}
#endif
