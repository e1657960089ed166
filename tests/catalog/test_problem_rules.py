"""Every entry of the rules that is wrong: its line, its name, the words."""

import pytest

GPUS = """\
version: 1
gpus:
  a100: {match: A100, memory: 80GiB, compute: 8.0}
  h100: {match: H100, memory: 80GiB, compute: 9.0}
  t4: {match: T4, memory: 16GiB}
templates:
"""
PLAIN = GPUS.replace("templates:\n", "templates: {lab: {}}\n")
WHOM = "Write each: user, each: user with group:, group:, user: or everybody: true."
WHEN = "Write days and times, for example Mon-Fri 20:00-07:00 or Sat,Sun 00:00-24:00."

# Each is line 7 of a catalog.
RULES = {
    "time zone": (
        "timezone: Europe/Zurih\n",
        "timezone: 'Europe/Zurih' is not a time zone. Did you mean `Europe/Zurich`?",
    ),
    "currency with an amount": (
        "currency: CHF 2\n",
        (
            "currency: 'CHF 2' is not a currency. "
            "Write it as it stands before an amount, at most 10 characters, for example CHF."
        ),
    ),
    "readings without an address": (
        "readings: {utilization: GPU}\n",
        (
            "readings: prometheus is missing. Add prometheus: with its address, for example "
            "http://prometheus.monitoring:9090."
        ),
    ),
    "an address without a scheme": (
        "readings: {prometheus: 'prometheus:9090'}\n",
        (
            "readings.prometheus: 'prometheus:9090' is not an address. Write it with http:// or https://, for example "
            "http://server.example.org:8080."
        ),
    ),
    "an address with a password": (
        "readings: {prometheus: 'http://me:secret@prometheus'}\n",
        (
            "readings.prometheus: the address contains a name or a password. "
            "Remove it, and write the path of a file in token_file."
        ),
    ),
    "a metric that is a question": (
        "readings: {prometheus: 'http://p', utilization: 'a{b=\"c\"}'}\n",
        (
            "readings.utilization: 'a{b=\"c\"}' is not the name of a metric. "
            "Write it as the exporter does, as DCGM_FI_DEV_GPU_UTIL."
        ),
    ),
    "a ratio as a percentage": (
        "readings: {prometheus: 'http://p', utilization: DCGM_FI_PROF_GR_ENGINE_ACTIVE}\n",
        (
            "readings.utilization: DCGM_FI_PROF_GR_ENGINE_ACTIVE is a ratio, not a percentage. "
            "Write it as readings.activity."
        ),
    ),
    "a percentage as a ratio": (
        "readings: {prometheus: 'http://p', activity: DCGM_FI_DEV_GPU_UTIL}\n",
        (
            "readings.activity: DCGM_FI_DEV_GPU_UTIL is not a ratio averaged over time. Write the name of a profiling "
            "counter, for example DCGM_FI_PROF_GR_ENGINE_ACTIVE, or none."
        ),
    ),
    "a counter as a percentage": (
        "readings: {prometheus: 'http://p', decoder: DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION}\n",
        (
            "readings.decoder: DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION is not a utilization. "
            "Write the name of one, for example DCGM_FI_DEV_GPU_UTIL."
        ),
    ),
    "a file that is not from the root": (
        "readings: {prometheus: 'http://p', token_file: token}\n",
        "readings.token_file: 'token' is not a path. Write it from the root, for example /run/secrets/name/file.",
    ),
    "queues of Kueue without one of all": (
        "teams: {ml: {}}\nscheduler: {kueue: {teams: {ml: of-ml}}}\n",
        (
            "8 scheduler.kueue: queue is missing. Add queue: with the name of a LocalQueue, for example "
            "scheduler: {kueue: {queue: workspaces}}."
        ),
    ),
    "a queue of Kueue for an unknown team": (
        "teams: {vision: {}}\nscheduler: {kueue: {queue: a, teams: {visoin: of-vision}}}\n",
        "8 scheduler.kueue.teams.visoin: no team is called `visoin`. Did you mean `vision`?",
    ),
    "a queue of Kueue without teams": (
        "scheduler: {kueue: {queue: a, teams: {ml: of-ml}}}\n",
        "scheduler.kueue.teams.ml: no team is called `ml`. No name is defined. Define one, or remove this.",
    ),
    "a queue of Volcano for an unknown team": (
        "teams: {vision: {}}\nscheduler: {volcano: {queue: a, teams: {visoin: of-vision}}}\n",
        "8 scheduler.volcano.teams.visoin: no team is called `visoin`. Did you mean `vision`?",
    ),
    "a priority of KAI for an unknown team": (
        "teams: {vision: {}}\nscheduler: {kai: {priority_classes: {visoin: high}}}\n",
        "8 scheduler.kai.priority_classes.visoin: no team is called `visoin`. Did you mean `vision`?",
    ),
    "Volcano and KAI": (
        "scheduler: {volcano: {}, kai: {}}\n",
        "scheduler: two schedulers can't own one queue. Keep one of volcano and kai.",
    ),
    "two schedulers": (
        "scheduler: {kueue: {queue: a}, http: {url: 'http://batch:8080'}}\n",
        "scheduler: two schedulers can't own one queue. Keep one of http and kueue.",
    ),
    "a scheduler that is nowhere": (
        "scheduler: {http: {timeout: 3s}}\n",
        (
            "scheduler.http: url is missing. Add url: with its address, for example scheduler: "
            "{http: {url: http://batch:8080}}."
        ),
    ),
    "a callback that anybody could send": (
        "scheduler: {http: {url: 'http://batch:8080', callback: 'http://gpu:9470'}}\n",
        (
            "scheduler.http.callback: without a token anybody could send a callback. Add token_file; the "
            "scheduler signs its reports with that token."
        ),
    ),
    "zone that is a folder": ("timezone: Etc\n", "timezone: 'Etc' is not a time zone. Did you mean `Etc/UTC`?"),
    "groups that are no list": (
        "  b: {groups: vision}\n",
        "templates.b.groups: 'vision' is not a list of groups. Write for example [vision, speech].",
    ),
    "a group that is a number": (
        "  b: {groups: [7]}\n",
        (
            "templates.b.groups: 7 is not a name in the hub. Write it as the hub has it, at most 255 characters; "
            "in quotes if it looks like something else."
        ),
    ),
    "priority beyond": (
        "  b: {priority: 101}\n",
        "templates.b.priority: 101 is not from -100 to 100. Write a whole number from -100 to 100.",
    ),
    "less than needed": (
        "  b: {gpus: {t4: 1, a100: 1}, needs: {memory: 20GiB}}\n",
        "templates.b.gpus.t4: `t4` has 16 GiB, and needs says 20 GiB. Remove it, or lower needs.",
    ),
    "older than needed": (
        "  b: {gpus: {a100: 1}, needs: {compute: 8.9}}\n",
        ("templates.b.gpus.a100: `a100` has compute capability 8.0, and needs says 8.9. Remove it, or lower needs."),
    ),
    "perhaps older than needed": (
        "  b: {gpus: {t4: 1}, needs: {compute: 7.0}}\n",
        ("templates.b.gpus.t4: `t4` has no compute capability written, and needs says 7.0. Remove it, or lower needs."),
    ),
    "more is needed than is inherited": (
        "  b: {gpus: {t4: 1}}\n  c: {extends: b, needs: {memory: 20GiB}}\n",
        "8 templates.c.needs: `t4` has 16 GiB, and needs says 20 GiB. Remove it, or lower needs.",
    ),
    "a substitute below the needs": (
        "  b: {gpus: {a100: 1}, needs: {memory: 20GiB}, substitutes: {a100: [h100, t4]}}\n",
        "templates.b.substitutes.a100: `t4` has 16 GiB, and needs says 20 GiB. Remove it, or lower needs.",
    ),
    "an inherited substitute below the needs": (
        "  b: {gpus: {a100: 1}, substitutes: {a100: [t4]}}\n  c: {extends: b, needs: {memory: 20GiB}}\n",
        "8 templates.c.needs: `t4` has 16 GiB, and needs says 20 GiB. Remove it from substitutes, or lower needs.",
    ),
    "an unknown substitute": (
        "  b: {gpus: {a100: 1}, substitutes: {a100: [h200]}}\n",
        "templates.b.substitutes.a100: no GPU kind is called `h200`. Did you mean `h100`?",
    ),
    "a substitute for what is not offered": (
        "  b: {gpus: {a100: 1}, substitutes: {h100: [a100]}}\n",
        "templates.b.substitutes.h100: `h100` is not among this template's gpus. Did you mean `a100`?",
    ),
    "a substitute for itself": (
        "  b: {gpus: {a100: 1}, substitutes: {a100: [a100]}}\n",
        "templates.b.substitutes.a100: `a100` cannot replace itself. Write only other kinds.",
    ),
    "a substitute of which too few are offered": (
        "  b: {gpus: {a100: 2-4, t4: 1}, substitutes: {a100: [t4]}}\n",
        (
            "templates.b.substitutes.a100: `a100` and `t4` have no number of GPUs in common. "
            "Widen gpus: {t4: ...}, or remove it."
        ),
    ),
    "substitutes that are no list": (
        "  b: {gpus: {a100: 1}, substitutes: {a100: h100}}\n",
        "templates.b.substitutes.a100: 'h100' is not a list of GPU kinds. Write for example [h100, t4].",
    ),
    "others' waiting": (
        "policies: {p: {extend: {others_wait: no}}}\n",
        "policies.p.extend.others_wait: 'no' is neither allow nor refuse. Write allow or refuse.",
    ),
    "a notice of no time": (
        "policies: {p: {preemption: {grace: 0s}}}\n",
        "policies.p.preemption.grace: '0s' is not a time above 0. Write a time above 0, for example 30m.",
    ),
    "a claim too short to be warned of": (
        "policies: {p: {claim: 2m, idle: {sample: 60s}}}\n",
        (
            "policies.p.claim: 2 min is less than 4 samples, one each 1 min. "
            "Write at least 4 min, so that users can be warned."
        ),
    ),
    "team without weight": (
        "teams: {vision: {weight: 0}}\n",
        "teams.vision.weight: 0 would give its members nothing. Write a weight above 0; 1 is usual.",
    ),
    "team of spaces": (
        "teams: {' ': {}}\n",
        (
            "teams. : ' ' is not a name in the hub. Write it as the hub has it, at most 255 characters; "
            "in quotes if it looks like something else."
        ),
    ),
    "quota for two": (
        "quotas: {q: {user: eve, everybody: true, gpus: {hard: 1}}}\n",
        f"quotas.q: it limits user and everybody at once. {WHOM}",
    ),
    "quota for not everybody": (
        "quotas: {q: {everybody: false, gpus: {hard: 1}}}\n",
        "quotas.q.everybody: False is not a value for everybody. Write everybody: true.",
    ),
    "two for each user": (
        "quotas: {q: {each: user, gpus: {hard: 1}}, r: {each: user, workspaces: {hard: 1}}}\n",
        "quotas.r: it limits the same users as `q`. Write all their limits in one of the two.",
    ),
    "soft above hard": (
        "quotas: {q: {group: v, memory: {soft: 2TiB, hard: 64GiB}}}\n",
        "quotas.q.memory.soft: soft, 2 TiB, is more than hard, 64 GiB. Lower it, or raise hard.",
    ),
    "soft budget above hard": (
        "quotas: {q: {each: user, gpu_hours: {per: day, soft: 40.5, hard: 40}}}\n",
        "quotas.q.gpu_hours.soft: soft, 40.5, is more than hard, 40. Lower it, or raise hard.",
    ),
    "budget without a period": (
        "quotas: {q: {each: user, cost: {hard: 40}}}\n",
        "quotas.q.cost: per is missing. Add per: day, week or month.",
    ),
    "budget per year": (
        "quotas: {q: {each: user, cost: {per: year, hard: 40}}}\n",
        "quotas.q.cost.per: 'year' is not a period. Write day, week or month.",
    ),
    "budget of words": (
        "quotas: {q: {each: user, cost: {per: day, hard: 40 CHF}}}\n",
        "quotas.q.cost.hard: '40 CHF' is not an amount of money. Write an amount of money, for example 250.",
    ),
    "quota of an unknown kind": (
        "quotas: {q: {each: user, types: {a10: {hard: 1}}}}\n",
        "quotas.q.types.a10: no GPU kind is called `a10`. Did you mean `a100`?",
    ),
    "what a full quota does": (
        "quotas: {q: {group: v, gpus: {hard: 1}, full: stop}}\n",
        "quotas.q.full: 'stop' is neither wait nor refuse. Write wait or refuse.",
    ),
    "full for one user": (
        "quotas: {q: {each: user, gpus: {hard: 1}, full: wait}}\n",
        (
            "quotas.q.full: only the user's own workspaces count in this quota. "
            "Remove full, because a request above this quota is always refused."
        ),
    ),
    "hours that are no list": (
        "hours: {when: Mon 1:00-2:00}\n",
        "hours: {'when': 'Mon 1:00-2:00'} is not a list. Write for example hours: [{key: value}].",
    ),
    "hours that are a text": (
        "hours:\n  - night\n",
        "8 hours.0: 'night' is not a mapping. Write keys and values, for example {key: value}.",
    ),
    "hours of an unknown day": (
        "hours: [{when: Mon-Fry 20:00-07:00, policy: p, instead_of: default}]\npolicies: {p: {}}\n",
        "hours.0.when: 'Fry' in 'Mon-Fry 20:00-07:00' is not a day. Write days as Mon, Tue, Wed, Thu, Fri, Sat, Sun.",
    ),
    "hours of an unknown time": (
        "hours: [{when: Mon 20:60-07:00, policy: p, instead_of: default}]\npolicies: {p: {}}\n",
        "hours.0.when: 20:60 in 'Mon 20:60-07:00' is not a time of day. Write it from 00:00 to 24:00.",
    ),
    "hours that begin at the end": (
        "hours: [{when: Mon 24:00-07:00, policy: p, instead_of: default}]\npolicies: {p: {}}\n",
        "hours.0.when: 'Mon 24:00-07:00' begins at 24:00. Let it begin at 00:00 of the next day.",
    ),
    "hours in words": (
        "hours: [{when: at night, policy: p, instead_of: default}]\npolicies: {p: {}}\n",
        f"hours.0.when: 'at night' is not a part of a week. {WHEN}",
    ),
    "hours of no day": (
        'hours: [{when: "2026-12-24, 2026-12-32", policy: p, instead_of: default}]\npolicies: {p: {}}\n',
        "hours.0.when: '2026-12-32' is not a date. Write year, month and day, for example 2027-02-01.",
    ),
    "hours of a part of a day": (
        "hours: [{when: 2026-12-24 12:00-24:00, policy: p, instead_of: default}]\npolicies: {p: {}}\n",
        "hours.0.when: '2026-12-24 12:00-24:00' is not a date. Write year, month and day, for example 2027-02-01.",
    ),
    "hours of an unknown policy": (
        "hours: [{when: Mon 1:00-2:00, policy: nihgt, instead_of: default}]\npolicies: {night: {}}\n",
        "hours.0.policy: no policy is called `nihgt`. Did you mean `night`?",
    ),
    "hours that change nothing": (
        "hours: [{when: Mon 1:00-2:00, policy: default, instead_of: default}]\n",
        "hours.0.instead_of: both policies are the same. Write the policy that applies at other times.",
    ),
    "hours without a policy": (
        "hours:\n  - {when: Mon 1:00-2:00, policy: default}\n",
        "8 hours.0: instead_of is missing. Add instead_of: default.",
    ),
    "hold of an unknown kind": (
        "holds: [{group: g, gpu: a10, count: 1, when: Mon 1:00-2:00}]\n",
        "holds.0.gpu: no GPU kind is called `a10`. Did you mean `a100`?",
    ),
    "hold until no day": (
        "holds: [{group: g, gpu: t4, count: 1, when: Mon 1:00-2:00, until: 2027-02-30}]\n",
        "holds.0.until: '2027-02-30' is not a date. Write year, month and day, for example 2027-02-01.",
    ),
    "hold until long ago": (
        "holds: [{group: g, gpu: t4, count: 1, when: Mon 1:00-2:00, until: 1027-02-03}]\n",
        "holds.0.until: '1027-02-03' is not from 2000 to 2199. Write year, month and day, for example 2027-02-01.",
    ),
    "hold without a group": (
        "holds: [{gpu: t4, count: 1, when: Mon 1:00-2:00}]\n",
        "holds.0: group is missing. Add group: cs231.",
    ),
    "room after no time": (
        "make_room:\n",
        "make_room: after is missing. Add after: with a time, for example 30m.",
    ),
}


@pytest.mark.parametrize(("appended", "problem"), RULES.values(), ids=RULES)
def test_promise_10_a_rule_that_is_wrong_is_refused_by_its_line(appended, problem, problems_of):
    place = "" if problem[0].isdigit() else "7 "
    assert problems_of(GPUS + appended if appended[0] == " " else PLAIN + appended) == [place + problem]


def test_promise_10_all_errors_in_lists_are_reported_at_once(problems_of):
    found = problems_of(
        GPUS
        + """\
  lab: {}
hours:
  - night
  - {when: never, policy: p, instead_of: default}
  - {when: Mon 1:00-2:00, policy: default, instead_of: defalt, day: Mon}
holds:
  - {group: g, gpu: T4, count: 0}
quotas:
  q: {group: v, gpus: {soft: 2, hard: 1}, types: {x: {hard: 1}}, cost: {hard: -1}}
"""
    )
    assert [problem.split(": ")[0] for problem in found] == [
        "9 hours.0",
        "10 hours.1.when",
        "10 hours.1.policy",
        "11 hours.2.day",
        "11 hours.2.instead_of",
        "13 holds.0.gpu",
        "13 holds.0.count",
        "13 holds.0",
        "15 quotas.q.cost.hard",
        "15 quotas.q.gpus.soft",
        "15 quotas.q.types.x",
        "15 quotas.q.cost",
    ]
