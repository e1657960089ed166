"""The modules that all endpoints and pages share.

They know no subject. The folder of a subject, for example ``quotas``, has its models, presenter, API and pages.
"""
