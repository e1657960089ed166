"""Every error of an entry, with its line and entry, and several errors at once."""

import pytest

from gpuspawner.catalog.document import LARGEST_BYTES

OPENS = "Write a list of lab, vscode and ssh, the default first, for example [lab, vscode, ssh]."

# Appended to the fixture `head`, which ends with line 5.
ENTRIES = {
    "unknown section": ("tmplates: {}\n", "6 tmplates: unknown key 'tmplates'. Did you mean `templates`?"),
    "unknown key": ("  b: {titel: B}\n", "6 templates.b.titel: unknown key 'titel'. Did you mean `title`?"),
    "unknown key without a likeness": (
        "quotas: {u: {each: user, gpus: {hard: 2, zzz: 1}}}\n",
        "6 quotas.u.gpus.zzz: unknown key 'zzz'. Known: soft, hard.",
    ),
    "section that is a list": (
        "policies: [default]\n",
        "6 policies: ['default'] is not a mapping. Write keys and values, for example policies: {key: value}.",
    ),
    "entry that is a text": (
        "  b: yes please\n",
        "6 templates.b: 'yes please' is not a mapping. Write keys and values, for example b: {key: value}.",
    ),
    "key written twice": (
        "  lab: {}\n",
        "6 templates.lab: written twice, first in line 5. Keep one of them, or give this one another name.",
    ),
    "key that is a list": (
        "  ? [a, b]\n  : {}\n",
        "6 templates: a key is a list or a mapping. Write a plain word as key.",
    ),
    "name with capitals": (
        "  PyTorch: {}\n",
        (
            "6 templates.PyTorch: 'PyTorch' is not a name. Use small letters, digits and dashes, at most 63, "
            "for example a100-80gb."
        ),
    ),
    "value left out": (
        "quotas:\n  u:\n    each: user\n    gpus:\n      hard:\n",
        "10 quotas.u.gpus.hard: none is not a number of GPUs. Write a number of GPUs, for example 4.",
    ),
    "true for a number": (
        "quotas: {u: {each: user, gpus: {hard: true}}}\n",
        "6 quotas.u.gpus.hard: True is not a number of GPUs. Write a number of GPUs, for example 4.",
    ),
    "quota without users": (
        "quotas: {u: {gpus: {hard: 2}}}\n",
        (
            "6 quotas.u: the users that it limits are missing. "
            "Write each: user, each: user with group:, group:, user: or everybody: true."
        ),
    ),
    "quota of nothing": ("quotas: {u: {each: user}}\n", "6 quotas.u: it limits nothing. Add gpus: {hard: 4}."),
    "quota for each group": (
        "quotas: {u: {each: group, gpus: {hard: 2}}}\n",
        (
            "6 quotas.u.each: 'group' is not a value for each. "
            "Write group: with its name to limit the group together, and add each: user to limit each of its members."
        ),
    ),
    "quota for each server": (
        "quotas: {u: {each: server, gpus: {hard: 2}}}\n",
        "6 quotas.u.each: 'server' is not a value for each. Write each: user.",
    ),
    "template above the quota": (
        "  all: {gpus: {a100: 8}}\nquotas: {u: {each: user, gpus: {hard: 4}}}\n",
        "6 templates.all.gpus.a100: at least 8, but the quota allows a user 4. Lower it, or raise the quota.",
    ),
    "usual count above the quota": (
        "  b: {gpus: {a100: 1-4}, default: {count: 4}}\nquotas: {u: {each: user, gpus: {hard: 2}}}\n",
        "6 templates.b.default.count: 4, but the quota allows a user 2. Lower it, or raise the quota.",
    ),
    "unknown kind": (
        "  b: {gpus: {a10: 1}}\n",
        "6 templates.b.gpus.a10: no GPU kind is called `a10`. Did you mean `a100`?",
    ),
    "kind called none": (
        "  b: {gpus: {none: 1}}\n",
        "6 templates.b.gpus.none: 'none' means no GPU. Choose another name for this kind.",
    ),
    "range reversed": ("  b: {gpus: {a100: 4-1}}\n", "6 templates.b.gpus.a100: '4-1' runs backwards. Write 1-4."),
    "count of other digits": (
        "  b: {gpus: {a100: ٣}}\n",
        "6 templates.b.gpus.a100: '٣' is not a whole number. Write a whole number from 1 to 1024.",
    ),
    "own images without a registry": (
        "  b: {own_images: ml/*}\n",
        (
            "6 templates.b.own_images: 'ml/*' is not a pattern of images with a registry. "
            "Write a registry and a path, with * for any characters, for example registry.example.org/ml/*."
        ),
    ),
    "own images of any registry": (
        "  b: {own_images: '*.example.org/*'}\n",
        (
            "6 templates.b.own_images: '*.example.org/*' is not a pattern of images with a registry. "
            "Write a registry and a path, with * for any characters, for example registry.example.org/ml/*."
        ),
    ),
    "tools that are no list": (
        "  b: {tools: {nlp: transformers}}\n",
        (
            "6 templates.b.tools.nlp: 'transformers' is not a list of packages. "
            'Write names as pip takes them, for example [transformers, "datasets>=3,<4"].'
        ),
    ),
    "a tool of an option of pip's": (
        "  b: {tools: {nlp: [-rfile.txt]}}\n",
        (
            "6 templates.b.tools.nlp: '-rfile.txt' is not a package. "
            'Write names as pip takes them, for example [transformers, "datasets>=3,<4"].'
        ),
    ),
    "a tool with a wrong name": (
        "  b: {tools: {N L P: [transformers]}}\n",
        (
            "6 templates.b.tools.N L P: 'N L P' is not a name. "
            "Use small letters, digits and dashes, at most 63, for example a100-80gb."
        ),
    ),
    "too many tools": (
        f"  b: {{tools: {{{', '.join(f't{number}: [a]' for number in range(21))}}}}}\n",
        "6 templates.b.tools: 21 tools are more than 20. Join some, or write another template.",
    ),
    "range without unit": (
        "  b: {bounds: {memory: 8-64GiB}}\n",
        "6 templates.b.bounds.memory: '8' is less than 1 MiB. Write a size with its unit, for example 64GiB or 512MiB.",
    ),
    "size without unit": (
        "  b: {default: {memory: 64}}\n",
        "6 templates.b.default.memory: 64 is less than 1 MiB. Write a size with its unit, for example 64GiB or 512MiB.",
    ),
    "default outside bounds": (
        "  b:\n    bounds: {cpu: 2-4}\n    default:\n      cpu: 8\n",
        (
            "9 templates.b.default.cpu: 8 is outside the bounds, 2 to 4. "
            "Write a value within them, or widen bounds: {cpu: ...}."
        ),
    ),
    "default outside the default bounds": (
        "  b: {default: {memory: 64GiB}}\n",
        (
            "6 templates.b.default.memory: 64 GiB is outside the bounds, 1 GiB to 32 GiB. "
            "Write a value within them, or widen bounds: {memory: ...}."
        ),
    ),
    "default kind not offered": (
        "  b: {gpus: {a100: 1}, default: {gpu: h100}}\n",
        "6 templates.b.default.gpu: `h100` is not among this template's gpus. Did you mean `a100`?",
    ),
    "default count not offered": (
        "  b: {gpus: {a100: 1-2}, default: {count: 3}}\n",
        "6 templates.b.default.count: 3 is outside a100's 1 to 2. Write a value within it, or widen gpus: {a100: ...}.",
    ),
    "default count without GPU": (
        "  b: {gpus: {a100: 1}, default: {gpu: none, count: 1}}\n",
        "6 templates.b.default.count: a count without a GPU. Remove it, or add gpus.",
    ),
    "unknown policy": (
        "  b: {policy: nihgt}\npolicies: {night: {}}\n",
        "6 templates.b.policy: no policy is called `nihgt`. Did you mean `night`?",
    ),
    "longer than its policy": (
        "  b: {bounds: {lifetime: 1h-8h}, policy: p}\npolicies: {p: {lifetime: 1h-4h}}\n",
        (
            "6 templates.b.bounds.lifetime: 1 h to 8 h is not within its policy's 1 h to 4 h. "
            "Shorten it, or change lifetime in policies.p."
        ),
    ),
    "inherited bounds outside its policy": (
        "  b: {bounds: {lifetime: 1h-2h}}\n  c: {extends: b, policy: p}\npolicies: {p: {lifetime: 4h-8h}}\n",
        (
            "7 templates.c.policy: 1 h to 2 h is not within its policy's 4 h to 8 h. "
            "Shorten it, or change lifetime in policies.p."
        ),
    ),
    "extends what is not": (
        "  b: {extends: labb}\n",
        "6 templates.b.extends: nothing in templates is called `labb`. Did you mean `lab`?",
    ),
    "extends in a circle": (
        "  x: {extends: b}\n  b: {extends: c}\n  c: {extends: b}\n",
        "7 templates.b.extends: goes in a circle: b > c > b. Remove one of these extends.",
    ),
    "extends itself": (
        "policies: {p: {extends: p}}\n",
        "6 policies.p.extends: goes in a circle: p > p. Remove one of these extends.",
    ),
    "extends too far": (
        "".join(f"  t{i}: {{extends: t{i + 1}}}\n" for i in range(11)) + "  t11:\n",
        "6 templates.t0.extends: the chain has more than 10 entries. Extend an entry that is nearer to the end.",
    ),
    "image of capitals": (
        "  b: {image: PyTorch:2}\n",
        (
            "6 templates.b.image: 'PyTorch:2' is not a container image. "
            "Write registry, name and tag, for example registry.example.org/ml/pytorch:2.9."
        ),
    ),
    "image with a space": (
        '  b: {image: "a b"}\n',
        (
            "6 templates.b.image: 'a b' is not a container image. "
            "Write registry, name and tag, for example registry.example.org/ml/pytorch:2.9."
        ),
    ),
    "opens no list": ("  b: {opens: lab}\n", f"6 templates.b.opens: 'lab' is not a way to open a workspace. {OPENS}"),
    "opens nothing": ("  b: {opens: []}\n", f"6 templates.b.opens: [] is not a way to open a workspace. {OPENS}"),
    "opens what is not": (
        "  b: {opens: [lab, emacs]}\n",
        f"6 templates.b.opens: 'emacs' is not a way to open a workspace. {OPENS}",
    ),
    "opens a mapping": (
        "  b: {opens: [{lab: 1}]}\n",
        f"6 templates.b.opens: {{'lab': 1}} is not a way to open a workspace. {OPENS}",
    ),
    "opens twice": ("  b: {opens: [lab, ssh, lab]}\n", f"6 templates.b.opens: lab is written twice. {OPENS}"),
    "opens ssh alone": (
        "  b: {opens: [ssh]}\n",
        "6 templates.b.opens: ssh alone leaves nothing for the browser to open. Write opens: [lab, ssh].",
    ),
    "title of spaces": (
        '  b: {title: "  "}\n',
        (
            "6 templates.b.title: '  ' is not text. "
            "Write one to 100 characters of text; put it in quotes if it looks like something else."
        ),
    ),
    "title that rings": (
        '  b: {title: "\\x07"}\n',
        (
            "6 templates.b.title: '\\x07' is too long or has characters that cannot be shown. "
            "Write one to 100 characters of text; put it in quotes if it looks like something else."
        ),
    ),
    "unknown mode": (
        "policies: {p: {mode: kill}}\n",
        "6 policies.p.mode: 'kill' is not a mode. Write observe (only record), warn (tell the user) or enforce (stop).",
    ),
    "nothing guaranteed": (
        "  b: {guarantee: {cpu: 0%}}\n",
        (
            "6 templates.b.guarantee.cpu: '0%' would guarantee nothing. "
            "Write a percentage from 1% to 100%, for example 25%."
        ),
    ),
    "threshold of nothing": (
        "policies: {p: {idle: {below: much}}}\n",
        "6 policies.p.idle.below: 'much' is not a percentage. Write a percentage from 0% to 100%, for example 5%.",
    ),
    "everything idle": (
        "policies: {p: {idle: {below: 101%}}}\n",
        "6 policies.p.idle.below: '101%' is more than 100 %. Write a percentage from 0% to 100%, for example 5%.",
    ),
    "nothing idle": (
        "policies: {p: {idle: {below: 0}}}\n",
        "6 policies.p.idle.below: 0 would make every GPU busy. Write a percentage from 1%, for example 5%.",
    ),
    "a fraction for a percentage": (
        "policies: {p: {idle: {below: 0.05}}}\n",
        (
            "6 policies.p.idle.below: 0.05 is less than the 1 % that nvidia-smi counts by. "
            "Write a percentage from 1%, for example 5%."
        ),
    ),
    "idle at once": (
        "policies: {p: {idle: {for: 0s}}}\n",
        "6 policies.p.idle.for: '0s' is not a time above 0. Write a time above 0, for example 30m.",
    ),
    "no time to object": (
        "policies: {p: {idle: {grace: 0s}}}\n",
        "6 policies.p.idle.grace: '0s' is not a time above 0. Write a time above 0, for example 30m.",
    ),
    "no time to object without a GPU": (
        "policies: {p: {activity: {none_for: 2h, grace: 0m}}}\n",
        "6 policies.p.activity.grace: '0m' is not a time above 0. Write a time above 0, for example 30m.",
    ),
    "time without unit": (
        "policies: {p: {idle: {grace: 10}}}\n",
        "6 policies.p.idle.grace: 10 is not a time. Write a time with its unit, for example 90s, 30m, 8h, 1h30m or 2d.",
    ),
    "sampling without pause": (
        "policies: {p: {idle: {sample: 0.05s}}}\n",
        "6 policies.p.idle.sample: '0.05s' would sample without pause. Write at least 0.1s; 60s is usual.",
    ),
    "a script before the end that takes too long": (
        "  b: {on_stop: {command: sync, timeout: 1h}}\n",
        (
            "6 templates.b.on_stop.timeout: '1h' is longer than 10m. "
            "Write at most 10m, because others wait for these GPUs."
        ),
    ),
    "idle before it is sampled": (
        "policies: {p: {idle: {for: 30s}}}\n",
        "6 policies.p.idle: 30 s is less than one sample, 1 min. Let `for` last several samples.",
    ),
    "activity of which nothing is written, with an inherited sample": (
        "policies:\n  default: {idle: {for: 9h, sample: 3h}, claim: 12h}\n  p: {extends: default, activity: }\n",
        "8 policies.p.activity: 2 h is less than one sample, 3 h. Let `none_for` last several samples.",
    ),
    "activity over before it is sampled": (
        "policies: {p: {activity: {none_for: 30s}}}\n",
        "6 policies.p.activity: 30 s is less than one sample, 1 min. Let `none_for` last several samples.",
    ),
    "activity for no time": (
        "policies: {p: {activity: {none_for: 0s}}}\n",
        "6 policies.p.activity.none_for: '0s' is not a time above 0. Write a time above 0, for example 30m.",
    ),
    "an unknown key of activity": (
        "policies: {p: {activity: {none_fro: 30m}}}\n",
        "6 policies.p.activity.none_fro: unknown key 'none_fro'. Did you mean `none_for`?",
    ),
    "a soft budget without unit": (
        "policies: {p: {idle: {soft: 60}}}\n",
        "6 policies.p.idle.soft: 60 is not a time. Write a time with its unit, for example 90s, 30m, 8h, 1h30m or 2d.",
    ),
    "soft evidence that is no list": (
        "policies: {p: {also_counts: {kernel: 1h}}}\n",
        ("6 policies.p.also_counts: {'kernel': '1h'} is not a list of soft evidence. Write for example [cpu, kernel]."),
    ),
    "soft evidence that does not exist": (
        "policies: {p: {also_counts: [kernels]}}\n",
        (
            "6 policies.p.also_counts: 'kernels' is not soft evidence. "
            "Write a list of cpu, kernel, terminal, ssh, editor."
        ),
    ),
    "extension above its total": (
        "policies: {p: {extend: {total: 2h}}}\n",
        "6 policies.p.extend: each extension, 4 h, is more than the total, 2 h. Raise total, or lower each.",
    ),
    "warnings that are no list": (
        "policies: {p: {extend: {warn: 1h}}}\n",
        "6 policies.p.extend.warn: '1h' is not a list of at most 5 times. Write for example [1h, 10m].",
    ),
    "kept less than never": (
        "policies: {p: {keep: {times: -1}}}\n",
        "6 policies.p.keep.times: -1 is not from 0 to 100. Write a whole number from 0 to 100.",
    ),
    "kept too often": (
        "policies: {p: {keep: {times: 101}}}\n",
        "6 policies.p.keep.times: 101 is not from 0 to 100. Write a whole number from 0 to 100.",
    ),
    "simulated kind unknown": (
        "simulated: {a10: 1}\n",
        "6 simulated.a10: no GPU kind is called `a10`. Did you mean `a100`?",
    ),
}


@pytest.mark.parametrize(("appended", "problem"), ENTRIES.values(), ids=ENTRIES)
def test_promise_10_an_entry_that_is_wrong_is_refused_by_its_line(appended, problem, head, problems_of):
    assert problems_of(head + appended) == [problem]


def test_promise_10_all_errors_are_reported_at_once_in_the_order_of_the_file(problems_of):
    found = problems_of(
        """\
verson: 1
gpus:
  a100: {match: NVIDIA A100*, memory: 80GB}
templates:
  lab: {gpus: {a100: 1, h100: 1}, bounds: {cpu: 8-2}, policy: nigth}
policies:
  night: {mode: stop, idle: {for: 30}}
"""
    )
    assert [problem.split(": ")[0] for problem in found] == [
        "1 verson",
        "1 version",
        "3 gpus.a100.memory",
        "5 templates.lab.bounds.cpu",
        "5 templates.lab.gpus.h100",
        "5 templates.lab.policy",
        "7 policies.night.mode",
        "7 policies.night.idle.for",
    ]


def test_no_error_is_reported_that_follows_from_another(head, problems_of):
    found = problems_of(head.replace("80GiB", "much") + "  b: {extends: lab, gpus: {a100: 1}, policy: P}\n")
    assert [problem.split(": ")[0] for problem in found] == ["3 gpus.a100.memory", "6 templates.b.policy"]


def test_a_default_outside_its_bounds_is_reported_with_other_errors_of_its_template(head, problems_of):
    found = problems_of(
        head + "  b: {gpus: {a100: 4-1}, bounds: {cpu: 1-4, memory: lots}, default: {cpu: 99, memory: 99GiB}}\n"
    )
    assert [problem.split(": ")[0] for problem in found] == [
        "6 templates.b.gpus.a100",
        "6 templates.b.bounds.memory",
        "6 templates.b.default.cpu",
    ]


def test_a_large_catalog_full_of_errors_is_checked_to_its_end(head, problems_of):
    lines = [f"  t{i}: {{extends: t{i + 1}, gpus: {{z{i}: 1}}, policy: p}}\n" for i in range(2000)]
    text = head + "".join(lines)
    assert len(text) < LARGEST_BYTES
    assert len(problems_of(text)) > 4000


CATALOG_FULL_OF_ERRORS = """\
version: 1
gpus:
  a100: {match: NVIDIA A100*, price: cheap}
  t4: {match: Tesla T4, memory: 16GiB, price: dear, autoscale: {max: 2, each: 4, start: soon}}
  half: {of: a100, shares: 2, memory: 10GiB, match: x, price: none}
templates:
  lab:
    image: A B
    volumes: []
    gpus: {a100: 1-2, t4: 4-1}
    default: {gpu: a100, count: 3, memory: 99GiB}
    bounds: {cpu: x, lifetime: 1h-48h}
    policy: night
  heir:
    extends: lab
    title: ""
    default: {gpu: h100, lifetime: 9d}
policies:
  night: {mode: stop, idle: {for: 30s, below: lots}, extend: {total: 2h}, keep: {times: -1}, lifetime: 1h-4h}
quotas:
  each: {gpus: {hard: 2, soft: 1}}
"""


def test_a_correction_uncovers_no_error_that_was_known_before(problems_of):
    """Mend each entry that is told: the next run tells nothing that the first did not."""
    found = {problem.split(": ")[0].partition(" ")[2] for problem in problems_of(CATALOG_FULL_OF_ERRORS)}
    mended = (
        ("price: cheap", "price: 1"),
        ("price: dear", "price: 1"),
        ("price: none", "price: 1"),
        ("start: soon", "start: 4m"),
        ("image: A B", "image: a"),
        ("    volumes: []\n", ""),
        ("t4: 4-1", "t4: 1-4"),
        ("cpu: x", "cpu: 1-2"),
        ('title: ""', "title: Heir"),
        ("mode: stop", "mode: warn"),
        ("below: lots", "below: 5%"),
        ("times: -1", "times: 1"),
        (", soft: 1", ""),
    )
    text = CATALOG_FULL_OF_ERRORS
    for wrong, right in mended:
        assert text.count(wrong) == 1, wrong
        text = text.replace(wrong, right)
    left = {problem.split(": ")[0].partition(" ")[2] for problem in problems_of(text)}
    assert left <= found, left - found
    assert len(left) > 8
