"""`weft help`: commands and topics explained."""

from __future__ import annotations

import click

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import ALL_COMMANDS
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.exits import EXIT_CODES
from weft.surfaces.wire.programs import HelpText

REVISIONS = """\
How to name a turn:
  main              the head of a session, by its label or an alias
  ses_0345          the same by 6 letters or more that only its label begins with
  main~2            two turns before it; main^ is main~1
  main@{3}          where the session stood three moves ago; `weft reflog main` lists them
  main@{yesterday}  where it stood then; also {2.hours.ago}, {last week}, {2026-11-15}, {2026-11-15 09:30}
  @{3}              the same of the latest session where a command reads, and of main where it writes
  main#7            the turn that the session made at depth 7
  6X2ZK4PD          the last 6 letters or more of a turn's id, or all 26
  7q2k4m/main       where another replica's branch of a session stands, as `weft sessions` shows it
  4f9c2a1           the first 7 digits or more of a turn's digest, or of an event inside it
Times are read in your own zone; --json answers in UTC."""
ENVIRONMENT = """\
What the environment says:
  WEFT_LEDGER      the ledger to use when --ledger does not name one
  WEFT_TOKEN       act with this token, and nothing more, when --token-file names none
  XDG_DATA_HOME    where your own ledger lies (weft/ledger.db); default ~/.local/share
  XDG_STATE_HOME   where it is kept which ledgers you trust (weft/trust.json); default ~/.local/state
  XDG_CONFIG_HOME  where your prices (weft/prices.toml), keys (weft/keys/) and credentials
                   (weft/credentials.json) lie; default ~/.config
  WEFT_KEY_PASSPHRASE  of the key to sign with, where nobody is there to be asked
  WEFT_SANDBOX     strict: run no program where the sandbox lacks something that `weft doctor` names
  NO_COLOR         any value: no colours
  COLUMNS, LINES   the size of the terminal, where it is not what the terminal says
  PAGER, LESS      how long output is shown on a terminal
  TZ               the zone that times are shown and read in
The variables by which other tools keep their sessions elsewhere hold for `weft import` too:
  AIDER_CHAT_HISTORY_FILE, CLAUDE_CONFIG_DIR, CODEX_HOME, COPILOT_HOME, FACTORY_DIR, FILE_STORE_PATH, GEMINI_CLI_HOME,
  KIRO_HOME, LLM_USER_PATH, MSWEA_GLOBAL_CONFIG_DIR, OPENCLAW_STATE_DIR, OPENCODE_DB, OPENHANDS_CONVERSATIONS_DIR,
  PI_CODING_AGENT_DIR, PI_CODING_AGENT_SESSION_DIR, SWE_AGENT_TRAJECTORY_DIR"""


def exit_codes() -> str:
    return "\n".join(["Exit codes:", *(f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES.items())])


TOPICS = {"revisions": REVISIONS, "exit-codes": exit_codes(), "environment": ENVIRONMENT}


@weft_command("help")
@click.argument("topic", required=False)
@click.option("--all", "all_commands", is_flag=True, help="List every command.")
@click.pass_context
def command(ctx: click.Context, call: Call, topic: str | None, all_commands: bool) -> None:
    """Explain a command or a topic.

    Topics: revisions, exit-codes, environment.
    """
    if all_commands and topic is not None:
        raise click.UsageError(f"--all lists every command; name {topic!r} without it")
    root = ctx.find_root()
    root.meta[ALL_COMMANDS] = all_commands
    text = _text(root, topic)
    if call.json:
        call.document(HelpText(topic=topic, text=text))
    else:
        click.echo(text)


def _text(root: click.Context, topic: str | None) -> str:
    if topic is None:
        return root.get_help()
    if topic in TOPICS:
        return TOPICS[topic]
    group = root.command
    assert isinstance(group, click.Group)
    topic_command = group.get_command(root, topic)
    if topic_command is None:
        raise click.UsageError(f"there is no command or topic {topic!r}; topics are {', '.join(TOPICS)}")
    with click.Context(topic_command, parent=root, info_name=topic) as ctx:
        return topic_command.get_help(ctx)
