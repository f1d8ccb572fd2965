#if Demo
import ArgumentParser
import Foundation
import Testing

@testable import CoroutineDemo

@Suite struct `Arguments of login` {
  @Test(arguments: [
    ("http://127.0.0.1:8080", "http://127.0.0.1:8080/"), ("https://example.org/app", "https://example.org/app/"),
    ("HTTP://localhost/", "HTTP://localhost/"), ("http://[::1]:80", "http://[::1]:80/"),
  ])
  func `a site's address is taken, with a slash at its end`(text: String, url: String) throws {
    #expect(try SiteAddress.parse(text).absoluteString == url)
  }

  @Test(arguments: [
    "", "127.0.0.1", "localhost:8080", "ftp://example.org", "http://", "http:///path", "http://a b",
    "file:///etc/passwd",
    "http://example.org?q=1", "http://example.org#top", "http://example.org:0", "http://example.org:70000",
  ])
  func `what is no site's address is refused, and named`(text: String) {
    #expect {
      try SiteAddress.parse(text)
    } throws: { "\($0)".contains("'\(text)'") }
  }

  @Test func `the built-in server's password is filled in, another site's is not`() throws {
    #expect(try LoginCommand.parse([]).credentials == Account(account: "ada", password: "lovelace"))
    #expect(try LoginCommand.parse(["--account", "alan"]).credentials.password == "turing")
    #expect(try LoginCommand.parse(["--password", "x"]).credentials.password == "x")
    #expect(try LoginCommand.parse(["--account", "eve"]).credentials.password.isEmpty)
    #expect(try LoginCommand.parse(["--site", "http://localhost"]).credentials.password.isEmpty)
  }

  @Test func `the help names every exit code`() {
    let help = LoginCommand.helpMessage()
    let statuses: [CoroutineDemo.ExitStatus] =
      LoginStep.allCases.map { .stepFailed($0.number) } + [
        .usage, .unreachable, .software, .noServer, .timedOut, .signalled(SIGINT), .signalled(SIGTERM),
      ]
    for status in statuses {
      #expect(help.contains("\(status.code)"), "\(status)")
    }
    #expect(Set(statuses.map(\.code)).count == statuses.count)
  }

  @Test func `the steps are numbered in order`() {
    #expect(LoginStep.allCases.map(\.number) == [1, 2, 3, 4, 5])
  }
}
#endif
